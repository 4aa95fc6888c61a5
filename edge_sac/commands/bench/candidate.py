"""What a benchmark's child process is asked to build, and what it answers with; the standard library alone.

A peer's interpreter may be another one than ours, so that nothing here or in `serve` may need a package.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Work:
    """The work that every candidate of a comparison does, and how this one does it."""

    variant: str = ""
    """Which of its kind the candidate is: a precision with options, a storage, an environment."""
    hidden: tuple[int, ...] = (256, 256)
    batch: int = 256
    threads: int = 1
    device: str = "cpu"
    transitions: int = 100_000
    """Held by the replay, which is full."""
    obs: int = 17
    action: int = 6
    """As a planar walker has; the size that published comparisons use."""
    path: str = ""
    """A file the candidate reads."""

    def to_json(self) -> str:
        """Return the work as JSON; `from_json` gives back an equal one."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Work:
        """Return the work written in `text`."""
        raw = json.loads(text)
        return Work(**{**raw, "hidden": tuple(raw["hidden"])})


@dataclass
class Candidate:
    """What can be measured: operations by name, each doing one unit of work."""

    operations: dict[str, Callable[[], Any]]
    facts: dict[str, Any] = field(default_factory=dict)
    """What it says of itself, JSON: versions, bytes, the memory of each stage of its making."""
    wait: Callable[[], None] | None = None
    """Return once all work given so far is done, where an operation returns earlier (CUDA)."""
    report: Callable[[], dict[str, Any]] = dict
    """What it has to say after each window, JSON."""


class Stages:
    """The resident memory [B] of this process after each stage of its making."""

    def __init__(self) -> None:
        self.resident = {"interpreter": memory("VmRSS")}

    def passed(self, name: str) -> None:
        """Note what is resident now as that of stage `name`."""
        self.resident[name] = memory("VmRSS")


def memory(field_name: str) -> int:
    """Return VmRSS (resident now) or VmHWM (the most there ever was) of this process in bytes."""
    with open("/proc/self/status", encoding="ascii") as status:  # noqa: PTH123
        for line in status:
            if line.startswith(field_name + ":"):
                return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field_name}")
