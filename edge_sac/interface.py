"""What the learner knows of an environment: names, and the maps from and to its units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge_sac.normalizer import Normalizer

Vector = NDArray[np.float32]


@dataclass(frozen=True)
class Interface:
    """The channels of an environment, and how its numbers become the learner's."""

    obs_names: Sequence[str]
    action_names: Sequence[str]
    normalizer: Normalizer
    action_lower: Vector  # [A], in the environment's units
    action_upper: Vector  # [A]
    dt: float = 0.0  # [s] of a control step, 0 where it is not known

    @property
    def action_offset(self) -> Vector:
        """Return the action [A] that is stored as 0."""
        return (self.action_lower / 2 + self.action_upper / 2).astype(np.float32)

    @property
    def action_scale(self) -> Vector:
        """Return what 1 in a stored action means, [A]."""
        return (self.action_upper / 2 - self.action_lower / 2).astype(np.float32)

    def allowed(self, action: Vector) -> Vector:
        """Return an action [A] without what rounding put beyond its bounds."""
        return np.clip(action, self.action_lower, self.action_upper)

    def in_units(self, chosen: Vector) -> Vector:
        """Return what an action [A] in [-1, 1] is in the environment's units."""
        return self.allowed(self.action_offset + self.action_scale * chosen)

    def stored(self, action: Vector) -> Vector:
        """Return what an action [A] in the environment's units is in [-1, 1]."""
        chosen: Vector = np.clip((action - self.action_offset) / self.action_scale, -1, 1)
        return chosen
