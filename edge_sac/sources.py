"""Where an engine's batches come from: what the host does around some updates, and what the device does in each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from edge_sac import sampler
from edge_sac.agent import Batch
from edge_sac.device_replay import DeviceReplay


class Source(Protocol):
    """Batches for a learner on one device."""

    at_once: int
    """How many updates lie between one `before` and `after`, at the most."""

    def before(self) -> None:
        """Do what only the host can, before some updates."""

    def batch(self) -> Batch:
        """Return an update's batch by operations of the device alone, on the same memory each time: it is recorded."""

    def after(self) -> None:
        """Do what only the host can, after those updates."""


class HostSource:
    """Batches that the host draws, one for each update, put into memory of the device that stays where it is."""

    at_once = 1

    def __init__(
        self, draw: Callable[[], sampler.Batch], static: Batch | None = None, learn: Callable[[], None] | None = None
    ) -> None:
        """`static` is the memory to fill; without it the drawn arrays are used. `learn` is called after each update."""
        self._draw, self._static, self._learn = draw, static, learn
        self._batch = static

    def before(self) -> None:
        """Draw a batch."""
        drawn = Batch.of(self._draw(), torch.device("cpu"))
        if self._static is None:
            self._batch = drawn
            return
        for name, memory in vars(self._static).items():
            memory.copy_(getattr(drawn, name))

    def batch(self) -> Batch:
        """Return the batch that was drawn."""
        assert self._batch is not None
        return self._batch

    def after(self) -> None:
        """Tell whoever draws how it went."""
        self._batch = self._static
        if self._learn is not None:
            self._learn()


class DeviceSource:
    """Batches that the device draws itself, as part of each update."""

    at_once = 2**31

    def __init__(self, replay: DeviceReplay) -> None:
        self._replay = replay

    def before(self) -> None:
        """Bring the rows that are new to the device."""
        self._replay.follow()

    def batch(self) -> Batch:
        """Draw a batch."""
        return self._replay.draw()

    def after(self) -> None:
        """Do nothing."""


def static_batch(size: int, obs_dim: int, action_dim: int, dtype: torch.dtype, device: torch.device) -> Batch:
    """Return memory for a batch, zeros of weight 1."""
    return Batch(
        obs=torch.zeros(size, obs_dim, dtype=dtype, device=device),
        action=torch.zeros(size, action_dim, dtype=dtype, device=device),
        reward=torch.zeros(size, device=device),
        discount=torch.zeros(size, device=device),
        next_obs=torch.zeros(size, obs_dim, dtype=dtype, device=device),
        weight=torch.ones(size, device=device),
    )
