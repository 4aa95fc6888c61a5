"""The newest rows ever written, by absolute number: row n lies in slot n % slots until row n + slots replaces it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sac.errors import ReplayError
from edge_sac.replay_disk import ReplayDisk
from edge_sac.replay_header import HEADER_BYTES, Shape, check_shape, new_header, newest_index
from edge_sac.replay_journal import Journal
from edge_sac.replay_row import EMPTY, STEP_MARK, StagedRow, check_of, dt_of, kind_of
from edge_sac.storage import STORAGES, codecs

_CHUNK = 4_096
"""Rows read or checked at a time."""


@dataclass(frozen=True)
class Rows:
    """N rows as float32: obs [N, O], and what led to them: action [N, A], reward, dt [s] and kind [N]."""

    obs: NDArray[np.float32]
    action: NDArray[np.float32]
    reward: NDArray[np.float32]
    dt: NDArray[np.float32]
    kind: NDArray[np.uint8]


class Ring:
    """Rows in memory or in a file, recovered when it is opened; `replay_journal` says how and why.

    Raises Refused when memory, disk or an existing file do not fit.
    """

    def __init__(self, shape: Shape, path: Path | None, obs_names: Sequence[str], action_names: Sequence[str]) -> None:
        self.layout = shape.layout
        self._at = shape.rows_at
        what = f"a replay of {self.layout.capacity} transitions ({self.layout.row_bytes} bytes each)"
        check = partial(check_shape, shape=shape, storages=STORAGES, path=path)
        self._disk = ReplayDisk(shape.map_bytes, path, new_header(shape), check, what)
        self.closed = False
        try:
            self.obs_codec, self.action_codec = codecs(shape, self._disk, obs_names, action_names)
            self.rows = self._disk.view(self._at, self.layout.slots, self.layout.row_bytes)
            self.parts = self.layout.views(self.rows)
            index = newest_index(self._disk.memory[:HEADER_BYTES], path)
            self.head = (index.written, index.added)
            """Rows ever written, and transitions ever added: one pair, for the journal's thread."""
            self.journal = Journal(self._disk, path, index, self.layout.slots, lambda: self.head)
            if self._disk.durable:
                self._recover()
        except BaseException:
            self.closed = True
            self._let_go()
            raise
        self.count = self._transitions()
        """Transitions that can be sampled."""
        self.journal.start()

    @property
    def written(self) -> int:
        """Rows ever written."""
        return self.head[0]

    @property
    def added(self) -> int:
        """Transitions ever added."""
        return self.head[1]

    @property
    def oldest(self) -> int:
        """The number of the oldest row held."""
        return max(0, self.written - self.layout.slots)

    @property
    def newest_slot(self) -> int:
        """Where the newest row lies; -1 % slots of an empty ring is a slot that holds nothing."""
        return (self.written - 1) % self.layout.slots

    def check_open(self) -> None:
        """Raise ReplayError when the ring is closed, or its disk has failed."""
        if self.closed:
            raise ReplayError("the replay is closed")
        if self.journal.failure is not None:
            self.journal.check()

    def begin_episode(self) -> None:
        """Let the observations' storage know that the next row begins an episode."""
        self.obs_codec.begin_episode(self.written, self._stored_obs)

    def append(self, row: StagedRow) -> None:
        """Write a finished row, the next. Raises ReplayError when the disk fails."""
        number, added = self.head
        slots = self.layout.slots
        if number >= self.journal.limit:
            self.journal.commit()
        step = row.mark >= STEP_MARK
        # The row replaced was the oldest; a transition that began with it is held no longer.
        mark = self.parts.mark
        if number >= slots and mark[number % slots] and mark[(number + 1) % slots] >= STEP_MARK:
            self.count -= 1
        self._put(number, row.bytes)
        self.head = (number + 1, added + step)
        self.count += step

    def numbers(self, slot: NDArray[np.int64], out: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the absolute numbers [N] of the rows held in slots [N]."""
        written, slots = self.written, self.layout.slots
        np.subtract(slot, written, out=out)
        np.remainder(out, slots, out=out)
        return np.add(out, written - slots, out=out)

    def read(self, first: int, last: int) -> Rows:
        """Return rows first to last - 1, decoded. Raises ReplayError for rows that are not held."""
        self.check_open()
        if not self.oldest <= first <= last <= self.written:
            raise ReplayError(f"rows {first} to {last} are not held: the replay has {self.oldest} to {self.written}")
        count = last - first
        rows = Rows(
            obs=np.zeros((count, self.layout.obs_dim), np.float32),
            action=np.zeros((count, self.layout.action_dim), np.float32),
            reward=np.zeros(count, np.float32),
            dt=np.zeros(count, np.float32),
            kind=np.zeros(count, np.uint8),
        )
        for begin in range(0, count, _CHUNK):
            part = slice(begin, begin + _CHUNK)
            numbers = np.arange(first, last)[part]
            found = self.layout.views(self.rows[numbers % self.layout.slots])
            self.obs_codec.decode(found.obs, numbers, rows.obs[part])
            self.action_codec.decode(found.action, numbers, rows.action[part])
            rows.reward[part], rows.dt[part] = found.reward, dt_of(found.mark)
            rows.kind[part] = kind_of(found.mark)
        return rows

    def close(self) -> None:
        """Write everything to the disk and let go of memory, file and lock; a second call does nothing."""
        if self.closed:
            return
        self.closed = True
        try:
            self.journal.close()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        nothing = np.empty((0, self.layout.row_bytes), dtype=np.uint8)
        self.rows, self.parts = nothing, self.layout.views(nothing)
        self._disk.close()

    def _stored_obs(self, first: int, last: int) -> NDArray[Any]:
        return self.parts.obs[np.arange(max(first, self.oldest), last) % self.layout.slots]

    def _put(self, number: int, data: bytes | bytearray) -> None:
        self._disk.write(self._at + number % self.layout.slots * self.layout.row_bytes, data)

    def _recover(self) -> None:
        """Take the rows written since the index, up to the first that is torn; wipe whatever else does not pass."""
        slots = self.layout.slots
        index, added = self.head
        written = index
        for begin in range(index, index + slots, _CHUNK):
            numbers = np.arange(begin, min(begin + _CHUNK, index + slots))
            whole = self._whole(numbers)
            torn = np.flatnonzero(~whole)
            good = int(torn[0]) if torn.size else len(numbers)
            added += int(np.count_nonzero(self.parts.mark[numbers[:good] % slots] >= STEP_MARK))
            written += good
            if torn.size:
                break
        self.head = (written, added)
        changed = written > index
        for begin in range(written - slots, written, _CHUNK):
            changed |= self._wipe(np.arange(begin, min(begin + _CHUNK, written)))
        if changed:
            self._disk.sync()
            self.journal.commit()

    def _wipe(self, numbers: NDArray[np.int64]) -> bool:
        """Wipe those rows that are neither whole nor empty; return whether there were any."""
        wiped = ~self._whole(numbers) & self.rows[numbers % self.layout.slots].any(axis=1)
        for number in numbers[wiped].tolist():
            self._put(number, bytes(self.layout.row_bytes))
        return bool(wiped.any())

    def _whole(self, numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which rows are held in their slots as these numbers, [N]."""
        rows = self.rows[numbers % self.layout.slots]
        parts = self.layout.views(rows)
        whole: NDArray[np.bool_] = (kind_of(parts.mark) != EMPTY) & (numbers >= 0)
        salts = self.obs_codec.salts(numbers)
        for i in np.flatnonzero(whole).tolist():
            body = rows[i, : self.layout.check_at]
            whole[i] = check_of(body, int(numbers[i]), int(salts[i])) == parts.check[i]
        return whole

    def _transitions(self) -> int:
        """Return how many steps are held with the row before them."""
        slots = self.layout.slots
        mark = self.parts.mark[np.arange(max(0, self.written - slots), self.written) % slots]
        return int(np.count_nonzero((mark[1:] >= STEP_MARK) & (mark[:-1] != 0)))
