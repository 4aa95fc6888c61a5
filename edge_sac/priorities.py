"""A sum tree over slots: draws them in proportion to their priorities, in a number of steps that grows with log2.

Every node is the sum of its two children, formed again whenever one changes, so that no error piles up. The leaves are
float32, the sums float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


class Priorities:
    """Priorities of `slots` slots, all 0 at first, and preallocated room to draw and set `batch_size` at once."""

    def __init__(self, slots: int, batch_size: int) -> None:
        depth = max(1, (slots - 1).bit_length())
        self.levels: list[NDArray[Any]] = [np.zeros(1 << level, np.float64) for level in range(depth)]
        self.levels.append(np.zeros(1 << depth, np.float32))
        self._slots = slots
        self._node = np.zeros(batch_size, np.int64)
        self._child = np.zeros(batch_size, np.int64)
        self._left = np.zeros(batch_size, np.float64)
        self._right = np.zeros(batch_size, np.float64)
        self._leaf = np.zeros(batch_size, np.float32)
        self._goes_right = np.zeros(batch_size, np.bool_)

    @property
    def leaves(self) -> NDArray[np.float32]:
        """The priorities, [slots]; change them by `set` and `set_range`, or call `rebuild` after."""
        return self.levels[-1][: self._slots]

    @property
    def total(self) -> float:
        return float(self.levels[0][0])

    def rebuild(self, first: int = 0, last: int | None = None) -> None:
        """Form again every sum over the leaves `first` to `last` - 1."""
        last = (len(self.levels[-1]) if last is None else last) - 1
        for below in range(len(self.levels) - 1, 0, -1):
            first, last = first >> 1, last >> 1
            children = self.levels[below][2 * first : 2 * last + 2]
            np.add(children[::2], children[1::2], out=self.levels[below - 1][first : last + 1], dtype=np.float64)

    def set(self, slot: NDArray[np.int64], priority: NDArray[np.float32]) -> None:
        """Give slots [B] new priorities [B]; of a slot that is there twice the last counts."""
        self.levels[-1][slot] = priority
        np.copyto(self._node, slot)
        for below in range(len(self.levels) - 1, 0, -1):
            np.right_shift(self._node, 1, out=self._node)
            above = self.levels[below - 1]
            if len(above) <= len(slot):
                self._top(below)
                return
            self._children(self.levels[below])
            np.add(self._left, self._right, out=self._left)
            above[self._node] = self._left

    def _top(self, below: int) -> None:
        """Form the upper levels again as a whole, which is less work than a batch of single nodes."""
        for level in range(below, 0, -1):
            children = self.levels[level]
            np.add(children[::2], children[1::2], out=self.levels[level - 1], dtype=np.float64)

    def _children(self, level: NDArray[Any]) -> None:
        """Read both children of each node, which lie in `level`."""
        np.left_shift(self._node, 1, out=self._child)
        self._take(level, self._left)
        np.add(self._child, 1, out=self._child)
        self._take(level, self._right)

    def _take(self, level: NDArray[Any], out: NDArray[np.float64]) -> None:
        if level.dtype == out.dtype:
            level.take(self._child, out=out, mode="clip")
        else:
            level.take(self._child, out=self._leaf, mode="clip")
            np.copyto(out, self._leaf)

    def draw(self, at: NDArray[np.float64], slot: NDArray[np.int64]) -> None:
        """Put into slot [B] the slots in whose share of the total `at` [B] falls; `at` is used up.

        Rounding may end a draw that lies on a border at a leaf of priority 0: the caller looks.
        """
        self._node[:] = 0
        for level in self.levels[1:]:
            np.left_shift(self._node, 1, out=self._child)
            self._take(level, self._left)
            np.greater_equal(at, self._left, out=self._goes_right)
            np.subtract(at, self._left, out=at, where=self._goes_right)
            np.add(self._child, self._goes_right, out=self._node)
        np.copyto(slot, self._node)
