"""Every buffer of a learner by arithmetic: what `Agent` will hold, known before any of it is allocated.

The classes that allocate are the home of these numbers; a test builds the learner in every combination of options
and compares the bytes role by role.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch

from edge_sac.agent import actor_shape, critic_shape
from edge_sac.autograd_network import NormalisedMlp
from edge_sac.config import AgentConfig
from edge_sac.flat import chunk
from edge_sac.half_matmul import BLOCK
from edge_sac.networks import Mlp
from edge_sac.precision import Precision, Rounding

Kind = Literal["state", "scratch", "passes", "policy", "replay", "for a moment"]
"""What a buffer grows with: parameters; parameters, but only to the length of a chunk; the batch; the acting policy;
transitions. What is there for a moment is taken and given back, but the process keeps it: see `host_memory`."""


@dataclass(frozen=True)
class Buffer:
    """One piece of memory, or several alike."""

    owner: str
    role: str
    kind: Kind
    dtype: str
    elements: int
    bytes: int
    on_gpu: bool = False


def buffer(owner: str, role: str, kind: Kind, dtype: torch.dtype, elements: int) -> Buffer:
    """Return a buffer of so many elements."""
    return Buffer(owner, role, kind, str(dtype).removeprefix("torch."), elements, elements * dtype.itemsize)


def learner_buffers(
    obs_dim: int,
    action_dim: int,
    config: AgentConfig,
    precision: Precision,
    compute: torch.dtype,
    device: torch.device,
) -> list[Buffer]:
    """Return what an `Agent` with these arguments holds once it has made an update; nothing is allocated.

    `compute` is the dtype that its products are computed in.
    """
    hidden = tuple(config.hidden)
    actor = actor_shape(obs_dim, action_dim, hidden)
    critic = critic_shape(obs_dim, action_dim, hidden, normalised=config.critic_norm)
    found = [
        *_network("critic", critic, precision, precision.rounding, device),
        *_target(critic.size, precision, device),
        *_network("actor", actor, precision, precision.actor_rounding, device),
        *_passes(actor, critic, config.batch, compute),
        *_product(actor, critic, config, precision.dtype, compute),
        Buffer("update", "scalars", "scratch", "", SCALARS // 4, SCALARS),
        buffer("update", "temporaries", "for a moment", torch.float32, _temporaries(actor, critic, config)),
    ]
    on_device = [replace(one, on_gpu=device.type == "cuda") for one in found if one.elements]
    return [*on_device, buffer("start", "first weights", "for a moment", torch.float32, _initialisation(actor, critic))]


SCALARS = 4_096
"""Bytes, not counted out: log alpha with its optimiser, coefficients, loss scales and counters are less."""
_HEAD = 20
"""fp32 numbers per action of a batch that the squashed normal's values and gradients take at the most (measured: 16 in
fp32, 13 in closed form in fp16, 19 where autograd does it)."""
_GRAPH = 4
"""fp32 numbers per value of a critic's layers that autograd takes at the most (measured: 2.8 in fp32, 3.3 in fp16)."""
COPY = "copy for autograd"
"""Of the parameters, where a network is differentiated by autograd; no checkpoint holds it."""


def _network(owner: str, mlp: Mlp, precision: Precision, rounding: Rounding, device: torch.device) -> Iterator[Buffer]:
    """Yield parameters, gradient and optimiser of one flat buffer: `HAdam`'s and `Adam`'s."""
    length, dtype = mlp.size, precision.dtype
    step = chunk(length, device)
    whole = precision.gradients == "whole"
    yield buffer(owner, "theta", "state", dtype, length)
    yield buffer(owner, "gradient", "state", dtype, length if whole else 0)
    yield buffer(owner, "bias gradient", "scratch", torch.float32, 0 if whole else mlp.copies * max(mlp.sizes))
    if precision.plain:
        yield buffer(owner, "m, w", "state", dtype, 2 * length)
        return
    half = dtype != torch.float32
    yield from _moments(owner, length, step, precision)
    yield buffer(owner, "compensation", "state", dtype, length if rounding == "kahan" else 0)
    yield buffer(owner, "dither", "scratch", torch.float32, 2 * step if rounding == "stochastic" and half else 0)
    yield buffer(owner, "step", "scratch", torch.float32, 3 * step)


def _moments(owner: str, length: int, step: int, precision: Precision) -> Iterator[Buffer]:
    """Yield what `moments.moment_storage` makes: m and w, and what widening and dithering them takes."""
    if precision.moments == "8bit":
        yield buffer(owner, "m, w", "state", torch.int8, 2 * length)
        yield buffer(owner, "moments", "scratch", torch.float32, 3 * step)
        yield buffer(owner, "dither of moments", "scratch", torch.float32, 5 * step)
    elif precision.dtype == torch.float32:
        yield buffer(owner, "m, w", "state", torch.float32, 2 * length)
    else:
        yield buffer(owner, "m, w", "state", precision.dtype, 2 * length)
        yield buffer(owner, "moments", "scratch", torch.float32, 2 * step)
        yield buffer(owner, "dither of moments", "scratch", torch.float32, 6 * step)


def _target(length: int, precision: Precision, device: torch.device) -> Iterator[Buffer]:
    """Yield what `target.target_state` makes for critics of `length` parameters."""
    step, dtype = chunk(length, device), precision.dtype
    codes = {"lag": "lag", "kahan": "scaled target", "plain": "target"}
    yield buffer("critic", codes[precision.target], "state", dtype, length)
    if precision.target == "kahan":
        yield buffer("critic", "target's compensation", "state", dtype, length)
        yield buffer("critic", "target's step", "scratch", torch.float32, 3 * step)
    else:
        wide = torch.float32 if precision.target == "lag" else dtype
        yield buffer("critic", "target's step", "scratch", wide, step)


def _passes(actor: Mlp, critic: Mlp, batch: int, compute: torch.dtype) -> Iterator[Buffer]:
    """Yield the memory of forward and backward passes, and what the last update left for its metrics."""
    action_dim = actor.sizes[-1] // 2
    yield buffer("update", "inputs", "passes", compute, 3 * batch * critic.sizes[0])
    yield buffer("update", "noise", "passes", torch.float32, 2 * batch * action_dim)
    yield buffer("update", "actor's outputs", "passes", compute, 2 * batch * sum(actor.sizes[1:]))
    outputs = 2 * batch * sum(critic.sizes[1:])
    if isinstance(critic, NormalisedMlp):
        # Of the last pass; what lies between is autograd's, there for a moment.
        outputs = 2 * batch * (critic.sizes[0] + 1)
        yield buffer("critic", COPY, "state", compute, _parameters(critic))
    yield buffer("update", "critics' outputs", "passes", compute, outputs)
    yield buffer("update", "gradients of outputs", "passes", compute, 2 * batch * sum(critic.sizes[1:]))
    yield buffer("update", "gradients of q and action", "passes", compute, 2 * batch * (1 + action_dim))
    yield buffer("update", "of the last, for metrics", "passes", torch.float32, 5 * batch)


def _product(
    actor: Mlp, critic: Mlp, config: AgentConfig, dtype: torch.dtype, compute: torch.dtype
) -> Iterator[Buffer]:
    """Yield the scratch of `half_matmul.Product`."""
    largest = 2 * config.batch * max(*config.hidden, actor.sizes[-1])
    yield buffer("update", "product", "scratch", compute, min(BLOCK, _largest_layer(actor, critic)))
    yield buffer("update", "rounding", "passes", dtype, 0 if compute == dtype else largest)


def _temporaries(actor: Mlp, critic: Mlp, config: AgentConfig) -> int:
    """Return fp32 numbers that an update takes and gives back at the most: the head's, and a block that is widened.

    Adding a half-precision lag to fp32 weights widens what is added.
    """
    head = _HEAD * config.batch * actor.sizes[-1] // 2
    graph = 0
    if isinstance(critic, NormalisedMlp):
        # Another copy of the parameters, their gradient, and of each layer what is normalised, rounded and kept.
        graph = 2 * _parameters(critic) + _GRAPH * 2 * config.batch * sum(critic.sizes)
    return head + min(BLOCK, _largest_layer(actor, critic)) + graph + SCALARS


def _initialisation(actor: Mlp, critic: Mlp) -> int:
    """Return fp32 numbers that `Mlp.initialise` takes on the host: a matrix, its factors, LAPACK's own.

    What LAPACK takes grows with its threads: at 1024 by 1024 66 numbers a row with one, 193 with two.
    """
    pairs = [pair for mlp in (actor, critic) for pair in zip(mlp.sizes, mlp.sizes[1:], strict=False)]
    return max(4 * rows * columns + 80 * max(rows, columns) + 160 * min(rows, columns) for rows, columns in pairs)


def _parameters(mlp: Mlp) -> int:
    """Return the number of parameters, without padding."""
    return sum(math.prod(shape) for _, shape in mlp.segments.values())


def _largest_layer(actor: Mlp, critic: Mlp) -> int:
    return max(actor.largest_layer, critic.largest_layer)
