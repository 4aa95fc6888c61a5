"""One row of the replay: where its parts lie, and the check that tells a torn or a stale row from a whole one.

A row holds an observation and what led to it: action, reward, time step. The transition from row s - 1 to row s is
therefore whole once row s is, and no row is ever changed after it was written - a row that waited for its action would
have to be, and a power cut in the middle would take the observation with it.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sac.errors import ReplayError

# The 3 bits of kind: what a row is. A STEP ends a transition, a FIRST begins an episode and has no action or reward.
EMPTY, FIRST, STEP = 0, 3, 4
TERMINATED, TRUNCATED = 1, 2  # said of a STEP, in its lower bits
DT_BITS = 13
STEP_MARK = STEP << DT_BITS
"""The least mark, kind and time step in one uint16, of a STEP."""
LONGEST_DT = 65_408.0
"""[s] The largest time step the mark holds."""
_DT_MASK = (1 << DT_BITS) - 1
_HALF = struct.Struct("<e")
_U16 = struct.Struct("<H")


def mark_of(kind: int, dt: float) -> int:
    """Return kind and time step [s] as a uint16: 3 bits, then an fp16's exponent and its upper 8 mantissa bits.

    dt keeps 9 significant bits from 61 us up. Raises ReplayError for one that is negative, not finite or too long.
    """
    if not 0 <= dt <= LONGEST_DT:
        raise ReplayError(f"dt is {dt}; it must be between 0 and {LONGEST_DT:g} s")
    (half,) = _U16.unpack(_HALF.pack(dt))
    return int(kind << DT_BITS | (half + 2) >> 2)


def kind_of(mark: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the kinds in marks [N]."""
    return (mark >> DT_BITS).astype(np.uint8)


def dt_of(mark: NDArray[Any]) -> NDArray[np.float32]:
    """Return the time steps [s] in marks [N]."""
    return ((mark & _DT_MASK) << 2).astype(np.uint16).view(np.float16).astype(np.float32)


@dataclass(frozen=True)
class RowLayout:
    """Where each part of a row lies: reward f4, obs, action, mark u2, check u4, nothing between."""

    capacity: int
    obs_dim: int
    action_dim: int
    obs_type: str
    action_type: str

    @cached_property
    def action_at(self) -> int:
        return 4 + np.dtype(self.obs_type).itemsize * self.obs_dim

    @cached_property
    def mark_at(self) -> int:
        return self.action_at + np.dtype(self.action_type).itemsize * self.action_dim

    @cached_property
    def check_at(self) -> int:
        return self.mark_at + 2

    @cached_property
    def row_bytes(self) -> int:
        return self.check_at + 4

    @cached_property
    def slots(self) -> int:
        """One more than the transitions of an unbroken episode: its first observation needs a row."""
        return self.capacity + 1

    def views(self, rows: NDArray[np.uint8]) -> RowViews:
        """Return the parts of rows, uint8 [N, row_bytes], as views of the same memory."""
        return RowViews(
            reward=rows[:, :4].view("<f4")[:, 0],
            obs=rows[:, 4 : self.action_at].view(self.obs_type),
            action=rows[:, self.action_at : self.mark_at].view(self.action_type),
            mark=rows[:, self.mark_at : self.check_at].view("<u2")[:, 0],
            check=rows[:, self.check_at :].view("<u4")[:, 0],
        )


@dataclass(frozen=True)
class RowViews:
    """Views of N rows: reward [N] float32; obs [N, O], action [N, A] as stored; mark [N] uint16; check [N] uint32."""

    reward: NDArray[Any]
    obs: NDArray[Any]
    action: NDArray[Any]
    mark: NDArray[Any]
    check: NDArray[Any]


class StagedRow:
    """One row being made, in memory of its own."""

    def __init__(self, layout: RowLayout) -> None:
        self._layout = layout
        self.bytes = bytearray(layout.row_bytes)
        parts = layout.views(np.frombuffer(self.bytes, dtype=np.uint8)[None])
        self.obs: NDArray[Any] = parts.obs[0]
        self.action: NDArray[Any] = parts.action[0]
        self.mark = 0
        self._body = memoryview(self.bytes)[: layout.check_at]

    def finish(self, number: int, salt: int, mark: int, reward: float) -> None:
        """Put in what is left, the check last; `number` is the row's absolute one."""
        self.mark = mark
        struct.pack_into("<f", self.bytes, 0, reward)
        struct.pack_into("<H", self.bytes, self._layout.mark_at, mark)
        struct.pack_into("<I", self.bytes, self._layout.check_at, check_of(self._body, number, salt))


def check_of(body: Any, number: int, salt: int) -> int:
    """Return the CRC-32 of a row without its check, started from the row's absolute number.

    The start and the result correspond one to one, so the same bytes never pass under another number (modulo 2^32): a
    row of an earlier lap is always found out, a torn one but once in 2^32. `salt` is of whatever else the row's meaning
    depends on.
    """
    return zlib.crc32(body, (number + salt) & 0xFFFFFFFF)
