"""The replay: each observation is stored once, in a row with the action and the reward that led to it.

A transition is two rows in a row, so an episode of n transitions takes n + 1: its true final observation is kept and
never confused with the next episode's first. `capacity` is the number of transitions of one unbroken episode that the
ring holds; every further episode inside it costs one of them (a ring full of 1000-step episodes holds 0.1 % fewer).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from edge_sac.errors import ReplayError
from edge_sac.replay_ring import Ring, Rows
from edge_sac.replay_row import FIRST, STEP, TERMINATED, TRUNCATED, StagedRow, mark_of
from edge_sac.sampler import Sampler
from edge_sac.storage import shape_of

_LARGEST = 3.4028234e38


class Replay:
    """A ring of transitions in memory, or in a file that is its own journal.

    With a path, an existing file is opened and continued: what it holds is the truth, newer than any checkpoint. An
    episode that was open when the last process ended is cut there. A killed process loses at most the transition being
    written, a power cut what was added in the last second; `replay_journal` says how. Raises Refused when memory, disk
    or an existing file do not fit, ReplayError for an impossible size.
    """

    def __init__(
        self,
        capacity: int,
        obs_dim: int,
        action_dim: int,
        storage: str = "fp16",
        path: Path | None = None,
        obs_names: Sequence[str] = (),
        action_names: Sequence[str] = (),
    ) -> None:
        shape = shape_of(capacity, obs_dim, action_dim, storage)
        names = _names("obs", obs_names, obs_dim), _names("action", action_names, action_dim)
        self.ring = Ring(shape, path, *names)
        self._first, self._step = StagedRow(shape.layout), StagedRow(shape.layout)
        self._open = False
        self._last: tuple[object, bytes] | None = None
        """dtype and bytes of the next_obs given last."""

    def __len__(self) -> int:
        """Return the number of transitions that can be sampled."""
        return self.ring.count

    @property
    def bytes_per_transition(self) -> int:
        """Bytes of one row, that is of one transition of an unbroken episode."""
        return self.ring.layout.row_bytes

    @property
    def open_episode(self) -> bool:
        """True while the last transition's episode has neither ended nor been cut."""
        return self._open

    def add(
        self,
        obs: ArrayLike,  # [O]
        action: ArrayLike,  # [A]
        reward: float,
        terminated: bool,
        truncated: bool,
        next_obs: ArrayLike,  # [O], the true final observation where the episode ends
        dt: float = 0.0,  # [s] from obs to next_obs, 0: unknown
    ) -> None:
        """Store one transition.

        Raises ReplayError, with nothing stored, for a value the storage cannot hold (named by channel), a wrong shape,
        an obs that is not the previous next_obs of an episode neither ended nor cut, or a disk that failed.
        """
        ring = self.ring
        ring.check_open()
        row = ring.layout
        here = _shaped("obs", obs, row.obs_dim)
        done = _shaped("action", action, row.action_dim)
        there = _shaped("next_obs", next_obs, row.obs_dim)
        if not abs(reward) <= _LARGEST:
            raise ReplayError(f"reward is {reward}; it must be finite in float32")
        kind = STEP | (TERMINATED if terminated else 0) | (TRUNCATED if truncated else 0)
        mark = mark_of(kind, dt)
        ring.action_codec.encode("action", done, self._step.action, ring.written)
        number = ring.written
        if self._open:
            self._check_continues(here)
        else:
            ring.begin_episode()
            salt = ring.obs_codec.encode("obs", here, self._first.obs, number)
            self._first.finish(number, salt, mark_of(FIRST, 0.0), 0.0)
            number += 1
        salt = ring.obs_codec.encode("next_obs", there, self._step.obs, number)
        self._step.finish(number, salt, mark, reward)
        if not self._open:
            ring.append(self._first)
        ring.append(self._step)
        self._open = not (terminated or truncated)
        self._last = (there.dtype, there.tobytes())

    def cut(self) -> None:
        """End the open episode without an end of its own (link lost, stop): what is complete stays."""
        if self.ring.closed:
            raise ReplayError("the replay is closed")
        self._open = False

    def sampler(
        self,
        batch_size: int,
        *,
        gamma: float,
        n_step: int = 1,
        prioritized: bool = False,
        dtype: DTypeLike = np.float32,
    ) -> Sampler:
        """Return what draws batches of this replay, observations and actions in `dtype`."""
        self.ring.check_open()
        return Sampler(self.ring, batch_size, gamma=gamma, n_step=n_step, prioritized=prioritized, dtype=dtype)

    def read(self, first: int, last: int) -> Rows:
        """Return rows `first` to `last` - 1 by absolute number; raises ReplayError for rows that are not held."""
        return self.ring.read(first, last)

    def state(self) -> dict[str, int]:
        """Return head and count, all that a checkpoint needs to store of a replay."""
        return {"written": self.ring.written, "added": self.ring.added}

    def added_since(self, state: Mapping[str, int]) -> int:
        """Return how many transitions are newer than state, which `state()` returned earlier.

        Raises ReplayError when the replay is older than state: its file was deleted, or is another run's.
        """
        written, added = self.ring.head
        if written < state["written"] or added < state["added"]:
            raise ReplayError(
                f"the replay has seen {added} transitions in {written} rows, the checkpoint {state['added']} in "
                f"{state['written']}: its file was deleted or belongs to another run"
            )
        return added - state["added"]

    def sync(self) -> None:
        """Bring everything added so far to the disk now. Raises ReplayError when the disk fails."""
        self.ring.check_open()
        self.ring.journal.commit()

    def close(self) -> None:
        """Write to the disk and let go of memory, file and lock; a second call does nothing."""
        self.ring.close()

    def _check_continues(self, given: NDArray[Any]) -> None:
        """Raise ReplayError when obs [O] would not be stored as the row written last."""
        if self._last == (given.dtype, given.tobytes()):
            return
        ring = self.ring
        same = ring.obs_codec.matches(given, ring.parts.obs[ring.newest_slot], ring.written - 1)
        if same.all():
            return
        i = int(np.flatnonzero(~same)[0])
        (before,) = ring.read(ring.written - 1, ring.written).obs
        raise ReplayError(
            f"obs channel {ring.obs_codec.names[i]!r} is {given[i]}, but the next_obs before was {before[i]} and "
            "that episode is open: end it by terminated or truncated, or call cut()"
        )


def _shaped(what: str, given: ArrayLike, width: int) -> NDArray[Any]:
    values = np.asarray(given)
    if values.shape != (width,):
        raise ReplayError(f"{what} has shape {values.shape}; expected {(width,)}")
    return values


def _names(what: str, names: Sequence[str], count: int) -> tuple[str, ...]:
    if not names:
        return tuple(f"{what}[{i}]" for i in range(count))
    if len(names) != count:
        raise ReplayError(f"{len(names)} {what} names given for {count} channels")
    return tuple(names)
