"""Which transitions to draw when those with large errors are to come more often, and what weight makes up for it.

Prioritised replay (Schaul et al., arXiv 1511.05952), the proportional variant: a transition is drawn in proportion to
(|error| + EPSILON)^ALPHA, a new one with the largest priority seen so far, and weighs (N P)^-BETA over the batch's
largest. BETA is where the paper begins; it then raises it to 1 over the run, but a robot's run has no known end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sac.errors import ReplayError
from edge_sac.priorities import Priorities
from edge_sac.replay_ring import Ring
from edge_sac.replay_row import STEP_MARK

ALPHA, BETA, EPSILON = 0.6, 0.4, 1e-6
# A draw lands on a border between two leaves, where rounding decides, about once in 10^16.
_MAX_DRAWS = 10


class RankedDraw:
    """The priorities of a ring's transitions, each by the slot its first observation lies in."""

    def __init__(self, ring: Ring, batch_size: int) -> None:
        self._ring = ring
        self._tree = Priorities(ring.layout.slots, batch_size)
        self._seen = 0
        """Rows known to the tree."""
        self._largest = 1.0
        self._share = np.arange(batch_size, dtype=np.float64)
        self._at = np.zeros(batch_size, np.float64)
        self._slot, self._number, self._age = (np.zeros(batch_size, np.int64) for _ in range(3))
        self._priority, self._current = np.zeros(batch_size, np.float32), np.zeros(batch_size, np.float32)
        self._counts, self._ignored = np.zeros(batch_size, np.bool_), np.zeros(batch_size, np.bool_)
        self._drawn = False

    def draw(self, rng: np.random.Generator, slot: NDArray[np.int64], weight: NDArray[np.float32]) -> None:
        """Put into slot [B] one draw from each of B equal shares of the priorities, and into weight [B] its weight."""
        self._follow()
        total = self._tree.total
        for _ in range(_MAX_DRAWS):
            rng.random(out=self._at)
            np.add(self._at, self._share, out=self._at)
            np.multiply(self._at, total / len(slot), out=self._at)
            self._tree.draw(self._at, slot)
            self._tree.leaves.take(slot, out=self._current, mode="clip")
            if self._current.min() > 0:
                break
        else:
            raise ReplayError(f"priorities add up to {total}, and no draw finds one above 0")
        np.multiply(self._current, self._ring.count / total, out=weight)
        np.power(weight, -BETA, out=weight)
        np.divide(weight, weight.max(), out=weight)
        np.copyto(self._slot, slot)
        self._ring.numbers(slot, self._number)
        self._drawn = True

    def prioritize(self, error: NDArray[Any]) -> int:
        """Set the priorities of the batch drawn last; return how many errors [B] were ignored."""
        if not self._drawn:
            raise ReplayError("nothing has been drawn: there is no batch whose priorities could be set")
        self._follow()
        new, counts = self._priority, self._counts
        np.absolute(error, out=new, casting="same_kind")
        np.isfinite(new, out=counts)
        np.add(new, EPSILON, out=new)
        np.power(new, ALPHA, out=new)
        np.greater_equal(self._number, self._ring.oldest, out=self._ignored)
        np.logical_and(counts, self._ignored, out=counts)
        np.logical_not(counts, out=self._ignored)
        self._tree.leaves.take(self._slot, out=self._current, mode="clip")
        np.copyto(new, self._current, where=self._ignored)
        self._largest = max(self._largest, float(np.maximum.reduce(new, where=counts, initial=0)))
        self._tree.set(self._slot, new)
        return int(np.count_nonzero(self._ignored))

    def state(self) -> tuple[dict[str, float], NDArray[np.float32]]:
        """Return how many rows the priorities are of, the largest so far, and the priorities [slots]."""
        return {"seen": self._seen, "largest": self._largest}, self._tree.leaves.copy()

    def restore(self, numbers: Mapping[str, float], priority: NDArray[np.float32] | None) -> None:
        """Take up a saved state; raises KeyError or ValueError when it is not of a ring of this size.

        What the ring no longer holds stays at 0; of a ring that was emptied since, nothing is taken up.
        """
        leaves, ring = self._tree.leaves, self._ring
        if priority is None or priority.shape != leaves.shape:
            raise ValueError(f"priorities are of another replay than one of {len(leaves)} slots")
        seen, largest = int(numbers["seen"]), float(numbers["largest"])
        if seen > ring.written:
            return
        mark = ring.parts.mark
        np.multiply(priority, (np.roll(mark, -1) >= STEP_MARK) & (mark != 0), out=leaves)
        leaves[ring.newest_slot] = 0
        self._tree.rebuild()
        self._seen, self._largest = seen, largest

    def _follow(self) -> None:
        """Learn of the rows written since the last call: each ends a transition, or begins an episode."""
        ring, leaves = self._ring, self._tree.leaves
        slots, written = ring.layout.slots, ring.written
        if self._seen == written:
            return
        leaves[ring.newest_slot] = 0
        # What began in the row before the oldest is no longer whole.
        number = max(self._seen, ring.oldest + 1)
        while number < written:
            begin = (number - 1) % slots
            count = 1 if begin == slots - 1 else min(written - number, slots - 1 - begin)
            mark, after = ring.parts.mark[begin : begin + count], number % slots
            whole = (ring.parts.mark[after : after + count] >= STEP_MARK) & (mark != 0)
            np.multiply(whole, np.float32(self._largest), out=leaves[begin : begin + count])
            self._tree.rebuild(begin, min(begin + count + 1, slots))
            number += count
        if ring.newest_slot == 0:
            self._tree.rebuild(0, 1)
        self._seen = written
