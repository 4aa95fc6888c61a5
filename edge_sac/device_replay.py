"""The replay's working copy on a device: the newest rows, mirrored from the map, drawn and decoded where they lie.

The map stays the journal and the truth; what lies here is what sampling reads of it, 5 bytes a row less. A draw is a
fixed number of operations on fixed shapes, without a look at the host, so that it can be recorded with the update it
feeds. Rejecting slots that begin no transition, as the host's sampler does, would take a number of draws that depends
on the data. Here every element has CANDIDATES slots drawn at once and takes the first that begins one; where none
does, the last transition of the episode before the first candidate. With a share p of such slots that happens to an
element with probability p^16: 2e-8 with episodes of two steps (p = 1/3), and episodes of one step have no other.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edge_sac.agent import Batch
from edge_sac.device_decode import decoder_of, stored_dtype
from edge_sac.device_memory import Column, DeviceColumn
from edge_sac.errors import ReplayError
from edge_sac.replay_ring import Ring
from edge_sac.replay_row import EMPTY, STEP, TERMINATED, kind_of

CANDIDATES = 16
_BEGINS, _ENDED = 1, 2
"""Of a row's flags: a transition begins with it; the one that ends with it terminated the episode."""
_STAGED = 4_096
"""Rows that are copied at a time."""

MakeColumn = Callable[[tuple[int, ...], torch.dtype, torch.device], Column]


class DeviceReplay:
    """The rows of a ring, for draws of `batch_size` of `n_step` transitions in `dtype` by `generator`'s numbers."""

    def __init__(
        self,
        ring: Ring,
        batch_size: int,
        *,
        gamma: float,
        n_step: int,
        dtype: torch.dtype,
        generator: torch.Generator,
        column: MakeColumn = DeviceColumn,
    ) -> None:
        layout, device = ring.layout, generator.device
        slots = layout.slots
        self._ring, self._slots, self._generator = ring, slots, generator
        self._gamma, self._n_step, self._dtype = gamma, n_step, dtype
        self._obs = column((slots, layout.obs_dim), stored_dtype(layout.obs_type), device)
        self._action = column((slots, layout.action_dim), stored_dtype(layout.action_type), device)
        self._reward = column((slots,), torch.float32, device)
        self._flags = column((slots,), torch.uint8, device)
        self._decode_obs, self._decode_action = (decoder_of(c, device) for c in (ring.obs_codec, ring.action_codec))
        rows = min(slots, _STAGED)
        self._staged = [_staging(c.values, rows) for c in (self._obs, self._action, self._reward, self._flags)]
        self._seen = 0
        """Rows mirrored; the last of them ends a transition."""
        self._written, self._held, self._newest_begin = (
            torch.zeros((), dtype=torch.int64, device=device) for _ in range(3)
        )
        self._uniform = torch.zeros(CANDIDATES, batch_size, dtype=torch.float64, device=device)
        self._weight = torch.ones(batch_size, device=device)

    def follow(self) -> None:
        """Mirror the rows that are new. Raises ReplayError when nothing can be drawn."""
        ring, slots = self._ring, self._slots
        ring.check_open()
        end = self._end()
        for decoder in (self._decode_obs, self._decode_action):
            decoder.follow()
        if end == self._seen:
            return
        # The row before the first new one now begins a transition, or is known not to.
        number = max(self._seen - 1, ring.oldest)
        while number < end:
            slot = number % slots
            count = min(end - number, slots - slot, _STAGED)
            self._mirror(number, slot, count, end)
            number += count
        self._seen = end
        self._written.fill_(end)
        self._held.fill_(min(end, slots))
        self._newest_begin.fill_((end - 2) % slots)

    def draw(self) -> Batch:
        """Return transitions drawn uniformly, with replacement, of the rows mirrored."""
        slot = self._draw_slots()
        after = self._next(slot)
        reward, flags = self._reward.values.take(after), self._flags.values.take(after)
        discount = torch.full_like(reward, self._gamma)
        last = after
        for k in range(2, self._n_step + 1):
            # Where it does not, flags and so the answer stay as they are.
            goes_on = flags.bitwise_and(_BEGINS).bool()
            following = self._next(last)
            step = self._reward.values.take(following).mul_(self._gamma ** (k - 1))
            reward = torch.where(goes_on, reward + step, reward)
            flags = torch.where(goes_on, self._flags.values.take(following), flags)
            last = torch.where(goes_on, following, last)
            discount.masked_fill_(goes_on, self._gamma**k)
        discount.masked_fill_(flags.bitwise_and(_ENDED).bool(), 0)
        return Batch(
            obs=self._read_obs(slot),
            action=self._decode_action.read(self._action.values.index_select(0, after), after, self._dtype),
            reward=reward,
            discount=discount,
            next_obs=self._read_obs(last),
            weight=self._weight,
        )

    def _read_obs(self, slot: Tensor) -> Tensor:
        stored = self._obs.values.index_select(0, slot)
        return self._decode_obs.read(stored, self._number(slot), self._dtype)

    def _number(self, slot: Tensor) -> Tensor:
        """Return the absolute numbers of the rows in slots [B], where reading them needs that."""
        if not self._ring.obs_codec.by_number:
            return slot
        return slot.sub(self._written).remainder_(self._slots).add_(self._written).sub_(self._slots)

    def _draw_slots(self) -> Tensor:
        uniform = torch.rand(
            self._uniform.shape,
            generator=self._generator,
            dtype=torch.float64,
            device=self._uniform.device,
            out=self._uniform,
        )
        # Rounding may bring a number just under 1 up to `held`.
        candidate = torch.minimum(uniform.mul_(self._held).long(), self._held - 1)
        begins = self._begins(candidate)
        slot = candidate.gather(0, begins.to(torch.uint8).argmax(dim=0, keepdim=True))[0]
        before = slot.sub(1).remainder_(self._slots)
        slot = torch.where(self._begins(slot), slot, before)
        # Before the oldest row lies the newest.
        return torch.where(self._begins(slot), slot, self._newest_begin)

    def _begins(self, slot: Tensor) -> Tensor:
        return self._flags.values.take(slot).bitwise_and_(_BEGINS).bool()

    def _next(self, slot: Tensor) -> Tensor:
        return slot.add(1).remainder_(self._slots)

    def _end(self) -> int:
        """Return the number after the newest row that ends a transition; beyond lies at most what was cut short."""
        ring = self._ring
        if ring.count == 0:
            raise ReplayError("the replay is empty: add a transition before sampling")
        mark, end = ring.parts.mark, ring.written
        while not (kind_of(mark[[(end - 1) % self._slots]])[0] & STEP and mark[(end - 2) % self._slots]):
            end -= 1
        return end

    def _mirror(self, number: int, slot: int, count: int, end: int) -> None:
        parts = self._ring.parts
        part = slice(slot, slot + count)
        columns = (self._obs, self._action, self._reward, self._flags)
        given = (parts.obs[part], parts.action[part], parts.reward[part], self._flags_of(number, count, end))
        for column, (memory, array), values in zip(columns, self._staged, given, strict=True):
            array[:count] = values
            column.write(slot, memory[:count])

    def _flags_of(self, number: int, count: int, end: int) -> NDArray[np.uint8]:
        """Return the flags of rows `number` to `number` + `count` - 1; the last mirrored begins nothing."""
        kind = kind_of(self._ring.parts.mark[np.arange(number, number + count + 1) % self._slots])
        begins = (kind[:-1] != EMPTY) & (kind[1:] & STEP > 0) & (np.arange(number, number + count) < end - 1)
        ended = (kind[:-1] & STEP > 0) & (kind[:-1] & TERMINATED > 0)
        flags: NDArray[np.uint8] = (begins * _BEGINS + ended * _ENDED).astype(np.uint8)
        return flags


def _staging(column: Tensor, rows: int) -> tuple[Tensor, NDArray[np.generic]]:
    """Return memory of the host for rows of a column, as a tensor and as an array."""
    memory = torch.zeros(rows, *column.shape[1:], dtype=column.dtype, pin_memory=column.is_cuda)
    return memory, memory.numpy()
