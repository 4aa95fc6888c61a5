"""The named weights of an acting policy: which there are, what shape each has, what they hash to.

The learner, the acting graph, the float64 reference and the exported file all speak of weights by these
names; this is the one place that lists them.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sac.errors import PolicyError

Vector = NDArray[np.float32]
Weights = Mapping[str, Vector]
POSITIVE = ("obs_scale", "action_scale")
"""Weights that divide or set a range: zero or less is refused."""


def weight_shapes(obs_dim: int, action_dim: int, hidden: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight by name, in the order the graph takes them as inputs.

    O observations, A actions, hidden widths H0, H1, ...: obs_mean [O], obs_scale [O], w0 [O, H0], b0 [H0],
    ... and for the last layer, numbered len(hidden), [H, 2A] and [2A]: the first A outputs are the mean, the
    last A the raw log standard deviation. action_scale [A] and action_offset [A] map tanh's (-1, 1) to the
    action's range. Raises PolicyError for a dimension below 1.
    """
    for what, size in (
        ("observations", obs_dim),
        ("actions", action_dim),
        *(("hidden width", h) for h in hidden),
    ):
        if size < 1:
            raise PolicyError(f"{what}: {size}; a policy needs at least 1")
    sizes = (obs_dim, *hidden, 2 * action_dim)
    shapes: dict[str, tuple[int, ...]] = {"obs_mean": (obs_dim,), "obs_scale": (obs_dim,)}
    for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        shapes[f"w{layer}"] = (inputs, outputs)
        shapes[f"b{layer}"] = (outputs,)
    return {**shapes, "action_scale": (action_dim,), "action_offset": (action_dim,)}


def check_shapes(weights: Mapping[str, NDArray[Any]], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise PolicyError unless `weights` are float32 arrays of exactly these names and shapes."""
    missing = [name for name in shapes if name not in weights]
    unknown = [name for name in weights if name not in shapes]
    if missing or unknown:
        raise PolicyError(
            f"weights do not match the architecture: missing {missing or 'none'}, "
            f"unknown {unknown or 'none'}; "
            f"expected {', '.join(shapes)}"
        )
    for name, shape in shapes.items():
        found = weights[name]
        if found.shape != shape or found.dtype != np.float32:
            raise PolicyError(f"weight {name} is {found.dtype} {list(found.shape)}; expected float32 {list(shape)}")


def bad_value(weights: Weights) -> str | None:
    """Return what is wrong with the first unusable number (`w1[3, 7] is nan`), or None when all are usable.

    Every weight must be finite, and the scales in POSITIVE above zero.
    """
    for name, value in weights.items():
        good = np.isfinite(value)
        if name in POSITIVE:
            good &= value > 0
        if not good.all():
            where = tuple(int(i) for i in np.argwhere(~good)[0])
            wanted = "finite and above zero" if name in POSITIVE else "finite"
            return f"{name}{list(where)} is {value[where]}; it must be {wanted}"
    return None


def weights_hash(weights: Weights) -> str:
    """Return the sha256, in hex, over name, shape and little-endian float32 bytes of every weight."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        value = np.ascontiguousarray(weights[name], dtype="<f4")
        digest.update(f"{name} {list(value.shape)}\n".encode())
        digest.update(value.tobytes())
    return digest.hexdigest()
