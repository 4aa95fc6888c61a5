"""Amounts of memory are read as written, and nothing else is."""

from __future__ import annotations

import pytest

from edge_sac.byte_size import mebibytes, parse_bytes
from edge_sac.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("1000000", 1_000_000),
        ("12 B", 12),
        ("3kB", 3_000),
        ("512MB", 512_000_000),
        ("4GB", 4_000_000_000),
        ("4gb", 4_000_000_000),
        ("2KiB", 2_048),
        (" 1.5 MiB ", 3 * 2**19),
        ("4GiB", 2**32),
    ],
)
def test_amount_is_read_as_written(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "GB", "4G", "4GBs", "-4GB", "4,000", "0", "0.1B", "1e9", "nan", "inf", "4 G B", "٤GB", "9" * 30]
)
def test_anything_else_is_refused_with_itself_in_the_message(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_bytes(text)
    assert repr(text) in str(refused.value)


def test_mebibytes_are_printed_with_one_decimal() -> None:
    assert mebibytes(1536 * 2**20 + 2**19) == "1,536.5 MiB"
