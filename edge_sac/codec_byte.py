"""Storage in one byte a value: observations in ranges that follow them, actions in [-1, 1].

The ranges are a guess at first, are calibrated once on the first episodes, and doubled whenever a value leaves them;
each time for the rows to come alone (`value_ranges`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sac.codec import Codec
from edge_sac.value_ranges import LEVELS, PROVISIONAL, RangeTable

LARGEST = 2.0**124
"""The largest size of a value: a range that was doubled to hold it is still finite in float32."""
CALIBRATION_ROWS = 1_000
"""Rows after which the next episode's begin calibrates: the default number of random steps, so that every range is
known when the policy begins to act."""
MARGIN = 0.25
"""Of a channel's spread, added on both sides: half as much again may come before a bit is lost to doubling."""


class RangeCodec(Codec):
    """Stores where a value lies in its channel's range, in 255 steps."""

    by_number = True

    def __init__(self, names: Sequence[str], table: RangeTable) -> None:
        super().__init__(names)
        self.table = table
        self._scaled = np.zeros(len(names), dtype=np.float32)
        self._gathered = np.zeros((0, len(names)), dtype=np.float32)
        self._current()

    def _current(self) -> None:
        newest = self.table.count - 1
        self._first, self._salt = int(self.table.first[newest]), int(self.table.salt[newest])
        self._low, self._step = self.table.low[newest], self.table.step[newest]

    def encode(self, what: str, values: NDArray[Any], out: NDArray[Any], number: int) -> int:
        self._hold_for(number)
        if not self._fits(values):
            self._widen(what, values, number)
        out[:] = np.rint(self._scaled, out=self._scaled)
        return self._salt

    def matches(self, values: NDArray[Any], stored: NDArray[Any], number: int) -> NDArray[np.bool_]:
        self._hold_for(number)
        self._fits(values)
        same: NDArray[np.bool_] = np.rint(self._scaled, out=self._scaled) == stored
        return same

    def _hold_for(self, number: int) -> None:
        """Take back ranges made for rows beyond `number`: those rows were refused, or a power cut took them."""
        if number < self._first:
            self.table.forget_from(number)
            self._current()

    def _fits(self, values: NDArray[Any]) -> bool:
        """Return whether every value is in range, and leave in `_scaled` where in it."""
        with np.errstate(over="ignore"):
            scaled = np.subtract(values, self._low, out=self._scaled, casting="same_kind")
            np.divide(scaled, self._step, out=scaled)
        # A NaN compares as false.
        return bool(scaled.min() >= -0.5 and scaled.max() <= LEVELS + 0.5)

    def _widen(self, what: str, values: NDArray[Any], number: int) -> None:
        """Multiply each range that a value leaves by the least power of two that holds it, on that side."""
        low, step = self._low.astype(np.float64), self._step.astype(np.float64)
        for channel in np.flatnonzero(~((self._scaled >= -0.5) & (self._scaled <= LEVELS + 0.5))).tolist():
            value = float(values[channel])
            if not abs(value) <= LARGEST:
                self.refuse(what, channel, value, f"beyond the {LARGEST:.2g} that u8 can hold: mend the sensor")
            if self.table.full:
                self.refuse(
                    what,
                    channel,
                    value,
                    f"outside of {low[channel]:g} to {low[channel] + LEVELS * step[channel]:g}, and the table of "
                    "ranges is full: this channel keeps growing; normalise it or choose the storage fp16",
                )
            below = value < low[channel]
            high = low[channel] + LEVELS * step[channel]
            span = high - low[channel]
            reach = (high - value if below else value - low[channel]) / span
            grown = span * 2.0 ** np.ceil(np.log2(reach))
            if below:
                low[channel] = high - grown
            step[channel] = grown / LEVELS
        self.table.add(number, low, step, calibrated=False)
        self._current()
        if not self._fits(values):
            raise AssertionError(f"{what}: {values} are outside of ranges just made for them")

    def decode(self, stored: NDArray[Any], numbers: NDArray[np.int64], out: NDArray[Any]) -> None:
        if len(self._gathered) < len(out):
            self._gathered = np.zeros(out.shape, dtype=np.float32)
        values, gathered = self.single(out), self._gathered[: len(out)]
        generation = self.table.generations(numbers)
        np.copyto(values, stored)
        self.table.step.take(generation, axis=0, out=gathered, mode="clip")
        np.multiply(values, gathered, out=values)
        self.table.low.take(generation, axis=0, out=gathered, mode="clip")
        np.add(values, gathered, out=values)
        if values is not out:
            np.copyto(out, values, casting="same_kind")

    def salts(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.table.salt[self.table.generations(numbers)]

    def begin_episode(self, number: int, stored: Callable[[int, int], NDArray[Any]]) -> None:
        """Calibrate, once: each channel's range becomes what it took in the last rows, with a margin."""
        self._hold_for(number)
        table = self.table
        if number < CALIBRATION_ROWS or table.full or table.calibrated[: table.count].any():
            return
        codes = stored(number - CALIBRATION_ROWS, number)
        values = np.zeros(codes.shape, dtype=np.float32)
        self.decode(codes, np.arange(number - len(codes), number), values)
        low, high = values.min(axis=0), values.max(axis=0)
        margin = np.maximum(MARGIN * (high - low), 2 * PROVISIONAL / LEVELS)
        table.add(number, low - margin, (high - low + 2 * margin) / LEVELS, calibrated=True)
        self._current()


class ActionByteCodec(Codec):
    """Stores values in [-1, 1] as int8, in steps of 1/127: -1, 0 and 1 exactly."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(names)
        self._scaled = np.zeros(len(names), dtype=np.float32)

    def encode(self, what: str, values: NDArray[Any], out: NDArray[Any], number: int) -> int:  # noqa: ARG002
        scaled = self._scale(values)
        if not (scaled.min() >= -127 and scaled.max() <= 127):
            channel = int(np.flatnonzero(~(np.abs(scaled) <= 127))[0])
            self.refuse(what, channel, values[channel], "and the storage u8 holds actions from -1 to 1: scale it")
        out[:] = scaled
        return 0

    def matches(self, values: NDArray[Any], stored: NDArray[Any], number: int) -> NDArray[np.bool_]:  # noqa: ARG002
        same: NDArray[np.bool_] = self._scale(values) == stored
        return same

    def _scale(self, values: NDArray[Any]) -> NDArray[np.float32]:
        scaled = np.clip(values, -2, 2, out=self._scaled, casting="same_kind")
        np.multiply(scaled, 127, out=scaled)
        return np.rint(scaled, out=scaled)

    def decode(self, stored: NDArray[Any], numbers: NDArray[np.int64], out: NDArray[Any]) -> None:  # noqa: ARG002
        values = self.single(out)
        np.copyto(values, stored)
        np.divide(values, np.float32(127), out=values)
        if values is not out:
            np.copyto(out, values, casting="same_kind")
