"""A fixed affine map from raw observations to what the networks see; it is chosen before training and never moves.

A running average would change what a stored observation means and differ between training and deployment. A robot's
description gives each channel's nominal range; any other environment is left as it is, as in the paper, but for
channels that fp16 cannot resolve: one that moves between 1000.0 and 1001.0 takes two values there.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]

STEPS_NEEDED = 8
"""A channel whose spread is under this many fp16 spacings of its own size gets an offset and a scale."""
HEADROOM = 2.0**15
"""A scale is at least this share of the channel's size, or of 1: what was nearly still in the calibration may move as
far later and still fit into fp16, whose largest number is about 2^16."""


@dataclass(frozen=True)
class Normalizer:
    """obs [O] -> (obs - mean) / scale, in fp32."""

    mean: Vector
    scale: Vector

    def __call__(self, obs: Vector) -> Vector:
        """Return the normalised observation."""
        result: Vector = (obs - self.mean) / self.scale
        return result


def identity(obs_dim: int) -> Normalizer:
    """Return the map that changes nothing."""
    return Normalizer(np.zeros(obs_dim, np.float32), np.ones(obs_dim, np.float32))


def resolving(observations: NDArray[np.float64]) -> Normalizer:
    """Return the identity, but for channels of `observations` [N, O] that fp16 cannot resolve.

    Those are centred on their middle and divided by half their spread, or by what HEADROOM asks. A constant channel
    stays as it is.
    """
    low, high = observations.min(axis=0), observations.max(axis=0)
    size = np.maximum(np.abs(low), np.abs(high)).clip(2.0**-14, 65504)
    spacing = 2.0 ** (np.floor(np.log2(size)) - 10)
    coarse = (high > low) & (high - low < STEPS_NEEDED * spacing)
    mean = np.where(coarse, (low + high) / 2, 0)
    scale = np.where(coarse, np.maximum((high - low) / 2, np.maximum(size, 1) / HEADROOM), 1)
    return Normalizer(mean.astype(np.float32), scale.astype(np.float32))
