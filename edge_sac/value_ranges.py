"""Which value each byte of a channel stands for, in every stretch of rows: ranges are replaced, stored rows never.

Each generation of ranges holds from an absolute row number on. They lie in the replay's own file, in the order they
were made, each with a check; the first that fails it ends the table. A row's own check is salted with its generation's,
so a power cut that keeps a row and loses the ranges it was written with leaves a row that fails, never one that reads
as other values. Table and rows are brought to the disk by the same syncs.
"""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sac.replay_disk import ReplayDisk

ENTRIES = 512
"""Generations a table holds: with 17 channels enough for each to double 14 times on either side."""
PROVISIONAL = 4.0
"""Before anything is known a byte spans -4 to 4. Observations are normalised to their nominal ranges where a robot's
description gives them, so that this is four times the nominal; what exceeds it is widened like any other range."""
LEVELS = 255


class RangeTable:
    """The generations of C channels: row `numbers` -> lowest value and step, each float32 [C]."""

    def __init__(self, disk: ReplayDisk, at: int, channels: int) -> None:
        self._disk, self._at, self._entry = disk, at, _entry_type(channels)
        self.first = np.zeros(1 + ENTRIES, dtype=np.int64)
        self.low = np.full((1 + ENTRIES, channels), -PROVISIONAL, dtype=np.float32)
        self.step = np.full((1 + ENTRIES, channels), 2 * PROVISIONAL / LEVELS, dtype=np.float32)
        self.salt = np.zeros(1 + ENTRIES, dtype=np.int64)
        self.calibrated = np.zeros(1 + ENTRIES, dtype=np.bool_)
        self.count = 1
        stored = disk.view(at, ENTRIES, self._entry.itemsize).view(self._entry)[:, 0]
        for entry in stored:
            if not self._whole(entry):
                break
            self._take(entry)

    @staticmethod
    def bytes_for(channels: int) -> int:
        """Return the bytes of a table in the file, in whole pages."""
        return -(-ENTRIES * _entry_type(channels).itemsize // 4096) * 4096

    @property
    def full(self) -> bool:
        return self.count > ENTRIES

    def add(self, first: int, low: NDArray[Any], step: NDArray[Any], calibrated: bool) -> None:
        """Let ranges hold from row `first` on. There must be room."""
        entry = np.zeros((), dtype=self._entry)
        entry["first"], entry["calibrated"], entry["low"], entry["step"] = first, calibrated, low, step
        entry["check"] = zlib.crc32(entry.tobytes()[:-4])
        self._disk.write(self._at + (self.count - 1) * self._entry.itemsize, entry.tobytes())
        self._take(entry)

    def forget_from(self, number: int) -> None:
        """Take back the generations that hold from a row beyond `number` on."""
        while self.count > 1 and self.first[self.count - 1] > number:
            self.count -= 1
            self._disk.write(self._at + (self.count - 1) * self._entry.itemsize, bytes(self._entry.itemsize))

    def generations(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the generation that holds for each row, [N]."""
        found: NDArray[np.int64] = np.searchsorted(self.first[: self.count], numbers, side="right")
        return np.subtract(found, 1, out=found)

    def _whole(self, entry: Any) -> bool:
        if entry["check"] != zlib.crc32(entry.tobytes()[:-4]):
            return False
        return bool((entry["step"] > 0).all() and entry["first"] >= self.first[self.count - 1])

    def _take(self, entry: Any) -> None:
        new = self.count
        self.first[new], self.low[new], self.step[new] = entry["first"], entry["low"], entry["step"]
        self.salt[new], self.calibrated[new] = entry["check"], entry["calibrated"]
        self.count = new + 1


def _entry_type(channels: int) -> np.dtype[Any]:
    return np.dtype(
        [
            ("first", "<u8"),
            ("low", "<f4", (channels,)),
            ("step", "<f4", (channels,)),
            ("calibrated", "<u4"),
            ("check", "<u4"),
        ]
    )
