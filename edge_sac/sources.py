"""Where an engine's batches come from: what the host does before some updates, and what the device does in each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from edge_sac import sampler
from edge_sac.agent import Batch


class Source(Protocol):
    """Batches for a learner on one device."""

    @property
    def at_once(self) -> int:
        """How many updates one `load` serves."""

    def load(self) -> None:
        """Do what only the host can, before the updates that follow."""

    def batch(self) -> Batch:
        """Return the next update's batch by operations of the device alone, the same each time; it is recorded."""


class HostSource:
    """Batches that the host samples, one for each update, put into memory of the device that stays where it is."""

    at_once = 1

    def __init__(self, draw: Callable[[], sampler.Batch], static: Batch) -> None:
        """`static` is the memory to fill; on a CPU the drawn arrays themselves are used instead."""
        self._draw, self._static = draw, static
        self._on_host = static.obs.device.type == "cpu"

    def load(self) -> None:
        """Draw a batch."""
        drawn = Batch.of(self._draw(), torch.device("cpu"))
        if self._on_host:
            self._static = drawn
            return
        for name, memory in vars(self._static).items():
            memory.copy_(getattr(drawn, name))

    def batch(self) -> Batch:
        """Return the batch that was loaded."""
        return self._static


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
