"""What an incremental encoder tells of an angle."""

import math


class Encoder:
    """An encoder whose zero is the joint's zero."""

    def __init__(self, counts: int) -> None:
        self._step = 2.0 * math.pi / counts

    def measured(self, angle: float) -> float:
        """Return the angle [rad] of the last whole count at or below angle [rad]."""
        return math.floor(angle / self._step) * self._step
