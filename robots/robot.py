"""The interface every robot speaks, real or simulated, and the state it reports."""

from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from robots.spec import RobotSpec

Vector: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RobotState:
    """What a robot measured at one control tick; arrays [J] in the order of the specification's joints."""

    position: Vector
    """[rad]"""
    speed: Vector
    """[rad/s], the robot's own estimate; observations are filtered from position instead."""
    time: float
    """Device clock [s] when it was measured."""
    age: float
    """How long before the tick it was measured [s]."""


class Robot(Protocol):
    """A robot driven once per control period: reset, then command and read in turn, close at the end."""

    @property
    def spec(self) -> RobotSpec:
        """Return the description the robot was built from."""
        ...

    def reset(self, rng: np.random.Generator) -> RobotState:
        """Return the state an episode starts from; of whatever happened before, nothing remains."""
        ...

    def command(self, target: Vector) -> None:
        """Take the target [A] of each actuated joint in SI units; it holds until the next one."""
        ...

    def read(self) -> RobotState:
        """Return the state at the next control tick; a twin advances its physics by one period."""
        ...

    def close(self) -> None:
        """Let go of everything the robot holds; a second call does nothing."""
        ...
