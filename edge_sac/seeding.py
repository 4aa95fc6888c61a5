"""Every random stream of a run, derived from its one seed, so that streams never share numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

TRAINING, SELECTION, JUDGEMENT, CALIBRATION = range(4)
"""What an episode is for. Policies are selected on one set of episodes and judged on another."""


def episode_seed(seed: int, purpose: int, index: int) -> int:
    """Return the seed that alone determines episode `index` of that purpose, in [0, 2^31)."""
    return int(np.random.SeedSequence((seed, 1 + purpose, index)).generate_state(1)[0]) >> 1


def generators(seed: int, count: int) -> list[np.random.Generator]:
    """Return `count` independent generators."""
    return [np.random.default_rng(child) for child in np.random.SeedSequence((seed, 0)).spawn(count)]


def restore(generator: np.random.Generator, state: dict[str, Any]) -> None:
    """Set a generator to a state that `generator.bit_generator.state` once returned."""
    generator.bit_generator.state = state
