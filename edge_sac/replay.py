"""The replay: each observation is stored once, the next observation of slot i is slot i + 1.

An episode of n transitions takes n + 1 slots, since its true final observation is kept and never confused
with the next episode's first. `capacity` is the number of transitions of one unbroken episode the ring holds;
every further episode end inside the ring costs one of them (a ring full of 1000-step episodes holds 0.1 %
fewer).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edge_sac.errors import ReplayError
from edge_sac.replay_map import ReplayMap, RowLayout, RowViews, layout_of

# What a slot holds. An open slot waits for its action; a final one has none to come.
EMPTY, OPEN, FINAL, STEP = 0, 1, 2, 4
TERMINATED, TRUNCATED = 8, 16  # said of a step, beside STEP

# At least one slot in five is a step (an episode of 1 takes two slots; three more may be final or
# unfinished), so fewer than 1 call in 10^17 needs more draws than this for its unluckiest element.
_MAX_DRAWS = 200


@dataclass(frozen=True)
class Batch:
    """B transitions: obs, next_obs [B, O], action [B, A] in the replay's dtype; reward, terminated [B]."""

    obs: NDArray[Any]
    action: NDArray[Any]
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    next_obs: NDArray[Any]


class Replay:
    """A ring of transitions in memory, or in a file that is its own journal.

    With a path, an existing file is opened and continued: the map's header is the truth, newer than any
    checkpoint. An episode that was open when the last process ended is cut there. A kill at any moment loses
    at most the transition being written. Raises Refused when memory, disk or an existing file do not fit,
    ReplayError for an impossible size.
    """

    def __init__(
        self,
        capacity: int,
        obs_dim: int,
        action_dim: int,
        dtype: str = "float16",
        path: Path | None = None,
        obs_names: Sequence[str] = (),
        action_names: Sequence[str] = (),
    ) -> None:
        self._layout = layout_of(capacity, obs_dim, action_dim, dtype)
        self._obs_names = _names("obs", obs_names, obs_dim)
        self._action_names = _names("action", action_names, action_dim)
        self._map = ReplayMap(self._layout, path)
        self._written, self._added = self._map.written, self._map.added
        self._count = self._recover()
        self._staged = np.zeros(2 * obs_dim + action_dim, dtype=dtype)
        self._obs, self._next_obs, self._action = np.split(self._staged, (obs_dim, 2 * obs_dim))
        self._finite = np.zeros(self._staged.shape, dtype=np.bool_)
        self._gather = _Gather(self._layout, 1)
        self._closed = False

    def __len__(self) -> int:
        """Return the number of transitions that can be sampled."""
        return self._count

    @property
    def bytes_per_transition(self) -> int:
        """Bytes of one slot, that is of one transition of an unbroken episode."""
        return self._layout.row_bytes

    @property
    def open_episode(self) -> bool:
        """True while the last transition's episode has neither ended nor been cut."""
        return self._written > 0 and int(self._map.parts.flags[self._newest]) == OPEN

    def add(
        self,
        obs: ArrayLike,  # [O]
        action: ArrayLike,  # [A]
        reward: float,
        terminated: bool,
        truncated: bool,
        next_obs: ArrayLike,  # [O], the true final observation where the episode ends
    ) -> None:
        """Store one transition.

        Raises ReplayError, with nothing stored, for a value the dtype cannot hold (named by channel), a wrong
        shape, or an obs that is not the previous next_obs of an episode neither ended nor cut.
        """
        self._check_open()
        self._stage(obs, action, next_obs)
        if not abs(reward) <= 3.4028234e38:
            raise ReplayError(f"reward is {reward}; it must be finite in float32")
        parts, slots = self._map.parts, self._layout.slots
        continues = self.open_episode
        if continues:
            self._check_continues(parts.obs[self._newest])
        first = self._written - 1 if continues else self._written
        written = first + 2
        here, there = first % slots, (first + 1) % slots
        evicted = int(parts.flags[there]) & STEP
        if not continues:
            evicted += int(parts.flags[here]) & STEP
        self._map.claim(written)
        if not continues:
            parts.obs[here] = self._obs
        parts.obs[there] = self._next_obs
        parts.flags[there] = FINAL if terminated or truncated else OPEN
        parts.action[here] = self._action
        parts.reward[here] = reward
        parts.flags[here] = STEP | (TERMINATED if terminated else 0) | (TRUNCATED if truncated else 0)
        self._map.commit(written, self._added + 1)
        self._written = written
        self._added += 1
        self._count += 1 - evicted // STEP

    def cut(self) -> None:
        """End the open episode without an end of its own (link lost, stop): what is complete stays."""
        self._check_open()
        if self.open_episode:
            self._map.parts.flags[self._newest] = FINAL

    def sample(self, batch_size: int, rng: np.random.Generator) -> Batch:
        """Return batch_size transitions drawn uniformly, with replacement.

        The arrays are the replay's own and are overwritten by the next call. Raises ReplayError when it is
        empty.
        """
        self._check_open()
        if batch_size < 1:
            raise ReplayError(f"batch size is {batch_size}; it must be at least 1")
        if self._count == 0:
            raise ReplayError("the replay is empty: add a transition before sampling")
        if self._gather.batch_size != batch_size:
            self._gather = _Gather(self._layout, batch_size)
        held = min(self._written, self._layout.slots)
        return self._gather.draw(self._map.rows, held, rng)

    def state(self) -> dict[str, int]:
        """Return head and count, all that a checkpoint needs to store of a replay."""
        return {"written": self._written, "added": self._added}

    def added_since(self, state: Mapping[str, int]) -> int:
        """Return how many transitions are newer than state, which `state()` returned earlier.

        Raises ReplayError when the replay is older than state: its file was deleted, or is another run's.
        """
        if self._written < state["written"] or self._added < state["added"]:
            raise ReplayError(
                f"the replay has seen {self._added} transitions in {self._written} slots, the checkpoint "
                f"{state['added']} in {state['written']}: its file was deleted or belongs to another run"
            )
        return self._added - state["added"]

    def sync(self) -> None:
        """Force everything added so far to the disk, against a power cut."""
        self._check_open()
        self._map.sync()

    def close(self) -> None:
        """Write to the disk and let go of memory, file and lock; a second call does nothing."""
        self._closed = True
        self._map.close()

    @property
    def _newest(self) -> int:
        return (self._written - 1) % self._layout.slots

    def _check_open(self) -> None:
        if self._closed:
            raise ReplayError("the replay is closed")

    def _recover(self) -> int:
        """Return the number of transitions held, once a half-written one is undone and an episode cut."""
        flags, slots = self._map.parts.flags, self._layout.slots
        for begun in range(self._written, self._map.claimed):
            flags[begun % slots] = EMPTY
        if self._written > 0:
            flags[self._newest] = FINAL
        return int(np.count_nonzero(flags & STEP))

    def _stage(self, obs: ArrayLike, action: ArrayLike, next_obs: ArrayLike) -> None:
        """Round the given values into the staging arrays, refusing what they cannot hold."""
        given = (np.asarray(obs), np.asarray(action), np.asarray(next_obs))
        staged = (self._obs, self._action, self._next_obs)
        names = (("obs", self._obs_names), ("action", self._action_names), ("next_obs", self._obs_names))
        with np.errstate(over="ignore"):
            for values, rounded, (what, _) in zip(given, staged, names, strict=True):
                if values.shape != rounded.shape:
                    raise ReplayError(f"{what} has shape {values.shape}; expected {rounded.shape}")
                rounded[:] = values
        np.isfinite(self._staged, out=self._finite)
        if self._finite.all():
            return
        for values, rounded, (what, channels) in zip(given, staged, names, strict=True):
            for i in np.flatnonzero(~np.isfinite(rounded)):
                raise ReplayError(
                    f"{what} channel {channels[i]!r} is {values[i]}, which {rounded.dtype} cannot hold (at "
                    f"most {np.finfo(rounded.dtype).max}): mend the sensor, scale it or store float32"
                )

    def _check_continues(self, stored: NDArray[Any]) -> None:
        if self._obs.tobytes() == stored.tobytes() or np.array_equal(self._obs, stored):
            return
        i = int(np.flatnonzero(self._obs != stored)[0])
        raise ReplayError(
            f"obs channel {self._obs_names[i]!r} is {self._obs[i]}, but the next_obs before was {stored[i]} "
            "and that episode is open: end it by terminated or truncated, or call cut()"
        )


class _Gather:
    """The preallocated arrays a batch of one size is gathered into."""

    def __init__(self, layout: RowLayout, batch_size: int) -> None:
        self.batch_size = batch_size
        self._slots = layout.slots
        self._rows = np.zeros((batch_size, layout.row_bytes), dtype=np.uint8)
        self._next_rows = np.zeros((batch_size, layout.row_bytes), dtype=np.uint8)
        self._parts: RowViews = layout.views(self._rows)
        self._next_parts: RowViews = layout.views(self._next_rows)
        self._next_index = np.zeros(batch_size, dtype=np.int64)
        self._flags = np.zeros(batch_size, dtype=np.uint16)
        self._batch = Batch(
            obs=np.zeros((batch_size, layout.obs_dim), dtype=layout.dtype),
            action=np.zeros((batch_size, layout.action_dim), dtype=layout.dtype),
            reward=np.zeros(batch_size, dtype=np.float32),
            terminated=np.zeros(batch_size, dtype=np.bool_),
            next_obs=np.zeros((batch_size, layout.obs_dim), dtype=layout.dtype),
        )

    def draw(self, rows: NDArray[np.uint8], held: int, rng: np.random.Generator) -> Batch:
        """Return a batch drawn from the first `held` rows; slots that hold no transition are drawn again.

        Whole rows are gathered, then taken apart: take() from a field's view would first copy the field of
        every row.
        """
        index = rng.integers(0, held, size=self.batch_size)
        rows.take(index, axis=0, out=self._rows, mode="clip")
        missing = np.flatnonzero((self._parts.flags & STEP) == 0)
        draws = 0
        while missing.size:
            draws += 1
            if draws > _MAX_DRAWS:
                raise ReplayError(
                    f"{missing.size} of {held} slots drawn {draws} times hold no transition: damaged flags"
                )
            index[missing] = rng.integers(0, held, size=missing.size)
            self._rows[missing] = rows[index[missing]]
            missing = missing[(self._parts.flags[missing] & STEP) == 0]
        np.add(index, 1, out=self._next_index)
        rows.take(self._next_index, axis=0, out=self._next_rows, mode="wrap")
        batch = self._batch
        np.copyto(batch.obs, self._parts.obs)
        np.copyto(batch.action, self._parts.action)
        np.copyto(batch.reward, self._parts.reward)
        np.copyto(batch.next_obs, self._next_parts.obs)
        np.bitwise_and(self._parts.flags, TERMINATED, out=self._flags)
        np.not_equal(self._flags, 0, out=batch.terminated)
        return batch


def _names(what: str, names: Sequence[str], count: int) -> tuple[str, ...]:
    if not names:
        return tuple(f"{what}[{i}]" for i in range(count))
    if len(names) != count:
        raise ReplayError(f"{len(names)} {what} names given for {count} channels")
    return tuple(names)
