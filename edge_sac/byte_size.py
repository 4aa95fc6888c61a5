"""Amounts of memory as people write and read them."""

from __future__ import annotations

import re

from edge_sac.errors import ConfigError

UNITS = {"": 1, "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
_BY_NAME = {name.lower(): size for name, size in UNITS.items()}
_AMOUNT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", re.IGNORECASE | re.ASCII)


def parse_bytes(text: str) -> int:
    """Return the bytes that `text` names, as 4GB, 512 MiB or 1000000; raises ConfigError for anything else."""
    found = _AMOUNT.fullmatch(text)
    unit = _BY_NAME.get(found[2].lower()) if found else None
    if found is None or unit is None:
        raise ConfigError(f"{text!r} is no amount of memory; expected a number and one of {', '.join(UNITS)[2:]}")
    amount = int(float(found[1]) * unit)
    if not 1 <= amount < 2**60:
        raise ConfigError(f"{text!r} is {amount} bytes; expected between 1 B and 2^60")
    return amount


def mebibytes(count: float) -> str:
    """Return a number of bytes in MiB, with one decimal."""
    return f"{count / 2**20:,.1f} MiB"
