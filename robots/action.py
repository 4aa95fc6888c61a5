"""Actions in [-1, 1] to targets in SI units, and back."""

import numpy as np

from robots.errors import UnsafeCommand
from robots.robot import Vector
from robots.spec import RobotSpec


class ActionScale:
    """The affine map between actions [A] in [-1, 1] and targets [A] of the actuated joints."""

    def __init__(self, spec: RobotSpec) -> None:
        ranges = np.array(spec.action.range, dtype=np.float64)
        self._middle = ranges.mean(axis=1)
        self._half = (ranges[:, 1] - ranges[:, 0]) / 2

    def target(self, action: Vector) -> Vector:
        """Return the target [A] in SI units; an action outside [-1, 1] counts as its nearest end.

        Raises UnsafeCommand if the action is not finite: clipping a NaN would hide a diverged policy.
        """
        if not np.isfinite(action).all():
            raise UnsafeCommand(f"action {action} is not finite; nothing was sent; the policy has diverged")
        return np.asarray(self._middle + self._half * np.minimum(np.maximum(action, -1.0), 1.0), dtype=np.float32)

    def action(self, target: Vector) -> Vector:
        """Return the action [A] whose target this is."""
        return np.asarray((target - self._middle) / self._half, dtype=np.float32)
