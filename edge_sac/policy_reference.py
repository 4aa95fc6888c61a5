"""The acting policy in float64 NumPy, and how far a float32 run of it may be away.

It shares no code with the ONNX graph: the export compares the two before it writes anything.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sac.policy_weights import Weights

Array = NDArray[np.float64]
UNIT_ROUNDOFF = 2.0**-24
"""Half the distance between 1 and the next float32."""
LARGEST_LOG_STD = 5.0
"""Of |log_std|, which lies between -5 and 2."""


def reference_action(
    weights: Weights,
    obs: NDArray[Any],  # [B, O]
    noise: NDArray[Any],  # [B, A]
) -> Array:
    """Return the action [B, A] in the action's own units, every operation in float64."""
    return _evaluate(weights, obs, noise)[0]


def action_tolerance(
    weights: Weights,
    obs: NDArray[Any],  # [B, O]
    noise: NDArray[Any],  # [B, A]
) -> Array:
    """Return how far a float32 action may be from the reference [B, A], in the action's units.

    (8 + sqrt(n)) u (b action_scale + |action_offset|): u = 2^-24; n the sum of the layers' fan-in; b the
    bound of the value before the last tanh, from the same network with |W|, |b|, |x| (and, with noise, the
    share the error of log_std has in it). Rounding errors of a sum of n terms grow as sqrt(n) times what they
    add up to; 8 covers the two tanh, the exponential and the last rounding. Measured with ONNX Runtime on
    x86-64, 3,000 actions each, in units of u (b action_scale + |action_offset|): trained-like 256-256 and
    1024-1024 weights at most 0.3; networks of one or no hidden layer, or with tiny weights, 6; the worst
    case, all weights and inputs positive, 16 at 48-256-256 (allowed 31) and 34 at 17-1024-1024 (allowed 53).
    A constant 4 would refuse correct policies. A normaliser left out, a swapped layer or a wrong activation
    is off by thousands of times the tolerance.
    """
    return _evaluate(weights, obs, noise)[1]


def _evaluate(weights: Weights, obs: NDArray[Any], noise: NDArray[Any]) -> tuple[Array, Array]:
    """Return the action and its tolerance, both [B, A]."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    layers = sum(name.startswith("w") for name in w)
    x = (obs.astype(np.float64) - w["obs_mean"]) / w["obs_scale"]
    bound = np.abs(x)
    for layer in range(layers):
        x = x @ w[f"w{layer}"] + w[f"b{layer}"]
        bound = bound @ np.abs(w[f"w{layer}"]) + np.abs(w[f"b{layer}"])
        if layer + 1 < layers:
            x = np.maximum(x, 0.0)
    mean, raw = np.split(x, 2, axis=1)
    mean_bound, raw_bound = np.split(bound, 2, axis=1)
    deviation = np.exp(-5.0 + 3.5 * (np.tanh(raw) + 1.0)) * noise.astype(np.float64)
    action = w["action_offset"] + w["action_scale"] * np.tanh(mean + deviation)
    relative = 1.0 + LARGEST_LOG_STD + 3.5 * raw_bound
    bound = mean_bound + np.abs(deviation) * relative
    factor = 8.0 + math.sqrt(sum(w[f"w{layer}"].shape[0] for layer in range(layers)))
    tolerance = factor * UNIT_ROUNDOFF * (bound * w["action_scale"] + np.abs(w["action_offset"]))
    return action, tolerance
