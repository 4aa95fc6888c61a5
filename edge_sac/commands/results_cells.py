"""The cells of a grid as they lie on the disk, one JSON file each, and the curves in them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Result = dict[str, Any]


def read_cells(cells: Path, names: Iterable[str]) -> list[Result]:
    """Return the named cells that are there, in order."""
    return [json.loads(path.read_text()) for name in names if (path := cells / f"{name}.json").exists()]


def by_variant(found: Sequence[Result]) -> dict[str, list[Result]]:
    """Return the cells of each variant, in the order in which they are first met."""
    variants = dict.fromkeys(cell["variant"] for cell in found)
    return {variant: [cell for cell in found if cell["variant"] == variant] for variant in variants}


def curve(found: Sequence[Result], quantity: str, every: int) -> tuple[list[int], list[list[float]]]:
    """Return steps [N], `every` apart, and values [seeds, N]: of each seed's evaluations the nearest earlier one."""
    longest = max(cell["steps"] for cell in found)
    steps = list(range(every, longest + 1, every))
    rows = []
    for cell in found:
        at = np.array(cell["curve"]["step"])
        values = cell["curve"][quantity]
        # An evaluation waits for the episode to end, up to a whole one after its due step.
        positions = np.searchsorted(at, [step + every - 1 for step in steps], side="right") - 1
        rows.append(
            [
                values[i] if i >= 0 and values[i] is not None and step <= cell["steps"] else float("nan")
                for i, step in zip(positions, steps, strict=True)
            ]
        )
    return steps, rows
