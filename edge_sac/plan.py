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
from edge_sac.learner_buffers import Buffer, Kind, learner_buffers
from edge_sac.policy_weights import weight_shapes
from edge_sac.precision import precision_of
from edge_sac.storage import shape_of

SERIALISED = 2
"""Copies of what a checkpoint saves while it is made: safetensors makes one, and returns another."""
RECORDED = 256
"""Observations in a checkpoint."""


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

    def of(self, *kinds: Kind) -> int:
        """Return the bytes of all buffers of these kinds."""
        return sum(one.bytes for one in self.buffers if one.kind in kinds)

    def peak(self, *, on_gpu: bool | None = None) -> int:
        """Return the bytes held at most at one time: in all, on a GPU of its own memory, or beside it."""
        counted = [one for one in self.buffers if on_gpu in (None, one.on_gpu)]
        passing = [one.bytes for one in counted if one.kind == "for a moment"]
        return sum(one.bytes for one in counted if one.kind != "for a moment") + max(passing, default=0)

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


def plan_of(config: Config, sizes: Sizes) -> Plan:
    """Return the plan of a run whose `device` is settled; raises ConfigError for settings that exclude each other."""
    chosen = precision_of(config)
    device = torch.device(config.device)
    learner = learner_buffers(sizes.obs_dim, sizes.action_dim, config.agent, chosen, sizes.compute, device)
    shape = shape_of(config.replay_capacity, sizes.obs_dim, sizes.action_dim, config.storage or chosen.storage)
    weights = sum(int(np.prod(s)) for s in weight_shapes(sizes.obs_dim, sizes.action_dim, config.agent.hidden).values())
    saved = _saved(config, sizes, learner, shape.layout.slots, weights)
    rows = shape.layout.slots, shape.layout.row_bytes
    on_host = [
        Buffer("policy", "that acts", "policy", "float32", weights, 4 * weights),
        Buffer("policy", "best so far", "policy", "float32", weights, 4 * weights),
        Buffer("policy", "on its way to act", "for a moment", "float32", weights, 4 * weights),
        Buffer("replay", "file's pages", "replay", "row", rows[0], shape.map_bytes),
        *_sampling(config, sizes, *rows, np.dtype(chosen.replay_dtype)),
        Buffer("checkpoint", "being made", "for a moment", "uint8", SERIALISED * saved, SERIALISED * saved),
    ]
    working_copy = []
    if device.type == "cuda":
        # A probe may put it into pinned memory instead.
        working_copy.append(Buffer("replay", "working copy", "replay", "row", rows[0], rows[0] * rows[1], on_gpu=True))
    files = (
        Buffer("disk", "replay", "replay", "row", rows[0], shape.map_bytes),
        Buffer("disk", "checkpoints", "state", "uint8", (KEPT + 1) * saved, (KEPT + 1) * saved),
    )
    return Plan((*learner, *working_copy, *on_host), files, config.replay_capacity, rows[1])


def _saved(config: Config, sizes: Sizes, learner: list[Buffer], slots: int, weights: int) -> int:
    """Return the bytes of a checkpoint's tensors."""
    state = sum(one.bytes for one in learner if one.kind == "state" and one.role != "gradient")
    priorities = 4 * slots if config.sampling == "prioritized" else 0
    return state + 4 * weights + 4 * RECORDED * sizes.obs_dim + priorities


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
