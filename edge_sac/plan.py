"""What a run will hold in memory and on disk, by arithmetic, before any of it is allocated.

How the replay's file is counted: its pages are the system's, which writes changed ones back and may drop them, so a run
survives with fewer. But a draw takes rows from anywhere, and each page that was dropped is a read from the disk then.
All of them count as needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from edge_sac.checkpoint import KEPT
from edge_sac.config import Config
from edge_sac.learner_buffers import COPY, Buffer, Kind, learner_buffers
from edge_sac.policy_weights import weight_shapes
from edge_sac.precision import precision_of
from edge_sac.storage import shape_of
from edge_sac.trainer import RECORDED

SERIALISED = 2
"""Copies of what a checkpoint saves while it is made: safetensors makes one, and returns another."""


@dataclass(frozen=True)
class Plan:
    """Everything a run holds, from which its sums are."""

    buffers: tuple[Buffer, ...]
    """In memory."""
    files: tuple[Buffer, ...]
    """In the run's folder."""
    capacity: int
    """Of the replay, in transitions."""
    row_bytes: int
    """Of one transition."""

    def of(self, *kinds: Kind, on_gpu: bool | None = None) -> int:
        """Return the bytes of all buffers of these kinds: in all, on a GPU of its own memory, or beside it."""
        return sum(one.bytes for one in self._in(on_gpu) if one.kind in kinds)

    def _in(self, on_gpu: bool | None) -> list[Buffer]:
        return [one for one in self.buffers if on_gpu in (None, one.on_gpu)]

    def peak(self, *, on_gpu: bool | None = None) -> int:
        """Return the bytes held at most at one time.

        What is there for a moment counts with the rest: freed memory is kept, and not every piece fits into what is.
        """
        return sum(one.bytes for one in self._in(on_gpu))

    @cached_property
    def disk(self) -> int:
        """Return the bytes of the files that can be foretold; metrics, report and policy are a few MB more."""
        return sum(one.bytes for one in self.files)


@dataclass(frozen=True)
class Sizes:
    """What a plan needs to know beside the settings."""

    obs_dim: int
    action_dim: int
    compute: torch.dtype
    """Of matrix products, as found out on the device."""


def plan_of(config: Config, sizes: Sizes, *, pinned: bool = False) -> Plan:
    """Return the plan of a run whose `device` is settled; raises ConfigError for settings that exclude each other.

    A GPU draws from a copy of the replay in its own memory, or, `pinned`, in the host's.
    """
    chosen = precision_of(config)
    device = torch.device(config.device)
    learner = learner_buffers(sizes.obs_dim, sizes.action_dim, config.agent, chosen, sizes.compute, device)
    shape = shape_of(config.replay_capacity, sizes.obs_dim, sizes.action_dim, config.storage or chosen.storage)
    weights = sum(int(np.prod(s)) for s in weight_shapes(sizes.obs_dim, sizes.action_dim, config.agent.hidden).values())
    saved = _saved(config, sizes, learner, shape.layout.slots, weights)
    rows = shape.layout.slots, shape.layout.row_bytes
    others = [
        Buffer("policy", "that acts", "policy", "float32", weights, 4 * weights),
        Buffer("policy", "best so far", "policy", "float32", weights, 4 * weights),
        Buffer("policy", "on its way to act", "for a moment", "float32", weights, 4 * weights),
        Buffer("replay", "file's pages", "replay", "row", rows[0], shape.map_bytes),
        *_sampling(config, sizes, *rows, np.dtype(chosen.replay_dtype)),
        Buffer("checkpoint", "being made", "for a moment", "uint8", SERIALISED * saved, SERIALISED * saved),
    ]
    if device.type == "cuda":
        others += _for_gpu(config, sizes, *rows, pinned=pinned)
    checkpoints = (KEPT + 1) * saved  # one is being written
    files = (
        Buffer("disk", "replay", "replay", "row", rows[0], shape.map_bytes),
        Buffer("disk", "checkpoints", "state", "uint8", checkpoints, checkpoints),
    )
    return Plan((*learner, *others), files, config.replay_capacity, rows[1])


def _saved(config: Config, sizes: Sizes, learner: list[Buffer], slots: int, weights: int) -> int:
    """Return the bytes of a checkpoint's tensors."""
    state = sum(one.bytes for one in learner if one.kind == "state" and one.role not in ("gradient", COPY))
    priorities = 4 * slots if config.sampling == "prioritized" else 0
    return state + 4 * weights + 4 * RECORDED * sizes.obs_dim + priorities


COPY_SAVES = 5
"""Bytes of a row that a GPU's copy leaves out: flags of one byte in place of a mark and a check."""
_CANDIDATES, _STAGED = 16, 4_096
"""Slots a GPU draws for each element of a batch, and rows that it is given at a time."""


def _for_gpu(config: Config, sizes: Sizes, slots: int, row_bytes: int, *, pinned: bool) -> Iterator[Buffer]:
    """Yield what a GPU draws its batches from; with priorities the host draws."""
    batch = config.agent.batch
    drawn = batch * (4 * (2 * sizes.obs_dim + sizes.action_dim) + 16 + 8 * _CANDIDATES)
    yield Buffer("replay", "batch on the GPU", "passes", "uint8", drawn, drawn, on_gpu=True)
    if config.sampling == "uniform":
        copied, staged = slots * (row_bytes - COPY_SAVES), min(slots, _STAGED) * (row_bytes - COPY_SAVES)
        yield Buffer("replay", "working copy", "replay", "row", slots, copied, on_gpu=not pinned)
        yield Buffer("replay", "pinned, on its way", "replay", "row", min(slots, _STAGED), staged)


def _sampling(
    config: Config, sizes: Sizes, slots: int, row_bytes: int, dtype: np.dtype[np.generic]
) -> Iterator[Buffer]:
    """Yield a sampler's own arrays, and its tree of priorities."""
    batch = config.agent.batch
    drawn = batch * (dtype.itemsize * (2 * sizes.obs_dim + sizes.action_dim) + 12)
    found = batch * (4 * 8 + 2 * row_bytes + 8)
    yield Buffer("replay", "batch, rows it is from", "passes", "uint8", drawn + found, drawn + found)
    if config.sampling == "prioritized":
        leaves = 1 << max(1, (slots - 1).bit_length())
        tree = 8 * (leaves - 1) + 4 * leaves
        yield Buffer("replay", "priorities", "replay", "float64", tree // 8, tree)
        ranked = batch * 87
        yield Buffer("replay", "ranks of the batch", "passes", "uint8", ranked, ranked)
