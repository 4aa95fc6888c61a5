"""What a benchmark prints and writes: a table, what must be said beside it, and a record that can be traced back."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

import edge_sac
from edge_sac.commands.json_file import write_json
from edge_sac.errors import Refused

WIDEST = 1_000
"""Columns of text that no table needs."""


@dataclass
class Report:
    """One benchmark's results."""

    benchmark: str
    settings: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    rounds: list[Any] = field(default_factory=list)
    """Every window behind the medians."""
    notes: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    versions: dict[str, dict[str, str]] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """Return all that is known of the measurement, JSON."""
        return {
            "benchmark": self.benchmark,
            "command": shlex.join(["edge-sac", *sys.argv[1:]]),
            "version": edge_sac.__version__,
            "commit": commit(),
            "machine": machine(),
            "versions": self.versions,
            "settings": self.settings,
            "rows": self.rows,
            "missing": self.missing,
            "notes": self.notes,
            "rounds": self.rounds,
        }

    def publish(self, output: Path | None, console: Console) -> None:
        """Print what must be said beside the tables and write the record. Raises Refused."""
        for note in dict.fromkeys(self.notes):
            console.print(note)
        for name, reason in self.missing.items():
            console.print(f"{name} is not in the table: {reason}")
        if output is not None:
            write_json(output, self.record())


def check_writable(output: Path | None) -> None:
    """Raise Refused where `output` cannot be written, before minutes of measurement."""
    if output is not None and not os.access(output.parent, os.W_OK):
        raise Refused(f"cannot write {output}: {output.parent} is no writable folder; give a file in one that is")


def show(console: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table whose first column holds names, as wide as it is: what is cut off cannot be read in a log."""
    made = Table(title=title, title_justify="left")
    for position, column in enumerate(columns):
        made.add_column(column, justify="right" if position else "left")
    for row in rows:
        made.add_row(*row)
    wide = console.options.update(width=WIDEST)
    console.width = max(console.width, console.measure(made, options=wide).maximum)
    console.print(made)


def number(value: float | None, digits: int = 3, unknown: str = "") -> str:
    """Return a number with so many significant digits, in plain notation."""
    if value is None:
        return unknown
    if value == 0:
        return "0"
    places = max(0, digits - 1 - _exponent(value))
    return f"{value:,.{places}f}"


def _exponent(value: float) -> int:
    return int(f"{abs(value):e}".partition("e")[2])


def mebibytes(size: float | None) -> str:
    """Return bytes as MiB with one decimal."""
    return "" if size is None else f"{size / 2**20:,.1f}"


def machine() -> dict[str, Any]:
    """Return what the measurement ran on."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "architecture": platform.machine(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }


def _processor() -> str:
    """Return the processor's name; a board's where the processor has none (Arm)."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
        return Path("/proc/device-tree/model").read_text().strip("\0\n ")
    except OSError:
        return platform.processor() or "unknown"


def commit() -> str:
    """Return the commit of the checkout that runs, with -dirty where it was changed; empty when installed."""
    root = Path(edge_sac.__file__).parents[1]
    if not (root / ".git").exists():
        return ""
    try:
        done = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
