"""Batches drawn from the replay into preallocated arrays: uniform or by priority, of one step or of several.

A transition is named by the slot its first observation lies in. Whole rows are gathered and then taken apart, since
take() from a field's view would first copy that field of every row. What a draw leaves behind is nothing; what it
needs for a moment is the generator's own array of B indices, and a few of those where draws are repeated, where rows
are looked up by number or priorities are set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from edge_sac.errors import ReplayError
from edge_sac.ranked_draw import RankedDraw
from edge_sac.replay_ring import Ring
from edge_sac.replay_row import DT_BITS, STEP_MARK, TERMINATED

# At least one slot in five begins a transition (an episode of 1 takes two; three more may be the newest or lost to a
# cut), so fewer than 1 call in 10^17 needs more draws than this for its unluckiest element.
_MAX_DRAWS = 200
_TERMINATED_BIT = TERMINATED << DT_BITS


@dataclass(frozen=True)
class Batch:
    """B transitions in the sampler's own arrays, which the next draw overwrites."""

    obs: NDArray[Any]  # [B, O]
    action: NDArray[Any]  # [B, A]
    reward: NDArray[np.float32]  # [B], of the steps taken, discounted
    discount: NDArray[np.float32]  # [B], gamma to the number of steps taken; 0 where the last one terminated
    next_obs: NDArray[Any]  # [B, O], after the last step taken
    weight: NDArray[np.float32]  # [B], importance weights; 1 where draws are uniform


class Sampler:
    """Draws batches of `batch_size`, observations and actions in `dtype`.

    With n_step above 1 a transition goes on for that many steps, or to the end of its episode or of what has been
    stored of it; one that was truncated or cut there goes on from its own last observation. Raises ReplayError for a
    number that cannot be.
    """

    def __init__(
        self,
        ring: Ring,
        batch_size: int,
        *,
        gamma: float,
        n_step: int = 1,
        prioritized: bool = False,
        dtype: DTypeLike = np.float32,
    ) -> None:
        for name, value in (("batch size", batch_size), ("n_step", n_step)):
            if value < 1:
                raise ReplayError(f"{name} is {value}; it must be at least 1")
        self._ring, self._gamma, self._n_step = ring, gamma, n_step
        row, size = ring.layout, batch_size
        self._slot, self._last, self._next = (np.zeros(size, np.int64) for _ in range(3))
        self._number = np.zeros(size, np.int64)
        self._first_rows = np.zeros((size, row.row_bytes), np.uint8)
        self._rows = np.zeros((size, row.row_bytes), np.uint8)
        self._first_parts, self._parts = row.views(self._first_rows), row.views(self._rows)
        self._mark = np.zeros(size, np.uint16)
        self._step_reward = np.zeros(size, np.float32)
        self._valid, self._ok = np.zeros(size, np.bool_), np.zeros(size, np.bool_)
        self._batch = Batch(
            obs=np.zeros((size, row.obs_dim), dtype),
            action=np.zeros((size, row.action_dim), dtype),
            reward=np.zeros(size, np.float32),
            discount=np.zeros(size, np.float32),
            next_obs=np.zeros((size, row.obs_dim), dtype),
            weight=np.ones(size, np.float32),
        )
        self._ranked = RankedDraw(ring, size) if prioritized else None

    def draw(self, rng: np.random.Generator) -> Batch:
        """Return a batch drawn with replacement. Raises ReplayError when the replay is empty or closed."""
        ring, batch = self._ring, self._batch
        ring.check_open()
        if ring.count == 0:
            raise ReplayError("the replay is empty: add a transition before sampling")
        if self._ranked is None:
            self._draw_uniformly(rng)
        else:
            self._ranked.draw(rng, self._slot, batch.weight)
            self._look(self._slot)
        self._decode(ring.obs_codec, self._first_parts.obs, self._slot, batch.obs)
        self._decode(ring.action_codec, self._parts.action, self._next, batch.action)
        np.copyto(batch.reward, self._parts.reward)
        np.copyto(self._mark, self._parts.mark)
        batch.discount.fill(self._gamma)
        if self._n_step > 1:
            self._walk()
        self._decode(ring.obs_codec, self._parts.obs, self._next, batch.next_obs)
        np.bitwise_and(self._mark, _TERMINATED_BIT, out=self._mark)
        np.not_equal(self._mark, 0, out=self._valid)
        np.copyto(batch.discount, 0, where=self._valid)
        return batch

    def prioritize(self, error: NDArray[Any]) -> int:
        """Set the priorities of the batch drawn last by its errors [B], of either sign; return how many were ignored.

        An error that is not finite leaves the priority as it was, and so does one of a transition no longer held.
        Raises ReplayError when draws are uniform, or nothing has been drawn.
        """
        if self._ranked is None:
            raise ReplayError("this sampler draws uniformly: it has no priorities to set")
        if error.shape != self._slot.shape:
            raise ReplayError(f"errors have shape {error.shape}; expected {self._slot.shape}")
        self._ring.check_open()
        return self._ranked.prioritize(error)

    def state(self) -> tuple[dict[str, float], NDArray[np.float32] | None]:
        """Return all that a checkpoint needs to draw on as before: two numbers, and the priorities [slots] if any."""
        return ({}, None) if self._ranked is None else self._ranked.state()

    def restore(self, numbers: Mapping[str, float], priority: NDArray[np.float32] | None) -> None:
        """Take up what `state` returned of this replay; raises KeyError or ValueError when it is of another."""
        if self._ranked is not None:
            self._ranked.restore(numbers, priority)

    def _draw_uniformly(self, rng: np.random.Generator) -> None:
        """Draw slots; those that begin no transition are drawn again."""
        held = min(self._ring.written, self._ring.layout.slots)
        np.copyto(self._slot, rng.integers(0, held, size=len(self._slot)))
        self._look(self._slot)
        draws = 0
        while not self._valid.all():
            draws += 1
            if draws > _MAX_DRAWS:
                raise ReplayError(f"some of {held} slots drawn {draws} times hold no transition: damaged rows")
            missing = np.flatnonzero(~self._valid)
            self._slot[missing] = rng.integers(0, held, size=missing.size)
            self._look(self._slot)

    def _look(self, slot: NDArray[np.int64]) -> None:
        """Gather the rows in slot [B] and those after, and find which of the two are a transition."""
        ring = self._ring
        ring.rows.take(slot, axis=0, out=self._first_rows, mode="clip")
        np.add(slot, 1, out=self._next)
        ring.rows.take(self._next, axis=0, out=self._rows, mode="wrap")
        np.greater_equal(self._parts.mark, STEP_MARK, out=self._valid)
        # A row that a power cut took is empty, the one after it may be whole.
        np.not_equal(self._first_parts.mark, 0, out=self._ok)
        np.logical_and(self._valid, self._ok, out=self._valid)
        np.not_equal(slot, ring.newest_slot, out=self._ok)
        np.logical_and(self._valid, self._ok, out=self._valid)

    def _walk(self) -> None:
        """Add up the steps after the first, as far as they go."""
        ring, batch, parts = self._ring, self._batch, self._parts
        slots = ring.layout.slots
        alive = self._ok
        alive.fill(True)
        np.remainder(self._next, slots, out=self._last)
        for k in range(2, self._n_step + 1):
            self._look_after_last(alive)
            np.multiply(parts.reward, self._gamma ** (k - 1), out=self._step_reward, casting="same_kind")
            np.add(batch.reward, self._step_reward, out=batch.reward, where=alive)
            np.copyto(self._mark, parts.mark, where=alive)
            np.copyto(batch.discount, self._gamma**k, where=alive)
            np.copyto(self._last, self._next, where=alive)
        np.copyto(self._next, self._last)
        ring.rows.take(self._next, axis=0, out=self._rows, mode="clip")

    def _look_after_last(self, alive: NDArray[np.bool_]) -> None:
        ring = self._ring
        np.not_equal(self._last, ring.newest_slot, out=self._valid)
        np.logical_and(alive, self._valid, out=alive)
        np.add(self._last, 1, out=self._next)
        np.remainder(self._next, ring.layout.slots, out=self._next)
        ring.rows.take(self._next, axis=0, out=self._rows, mode="clip")
        np.greater_equal(self._parts.mark, STEP_MARK, out=self._valid)
        np.logical_and(alive, self._valid, out=alive)

    def _decode(self, codec: Any, stored: NDArray[Any], slot: NDArray[np.int64], out: NDArray[Any]) -> None:
        if codec.by_number:
            self._ring.numbers(slot, self._number)
        codec.decode(stored, self._number, out)
