"""What both twins of the Furuta pendulum are as a robot; each adds its physics."""

import math
from abc import ABC, abstractmethod

import numpy as np

from robots.robot import RobotState, Vector
from robots.spec import RobotSpec
from sim.furuta_equations import Motion
from sim.furuta_plant import FurutaPlant


class FurutaTwin(ABC):
    """A Robot that starts hanging, holds the last command, and is read once a control period."""

    def __init__(self, spec: RobotSpec) -> None:
        self._spec = spec
        self._plant = FurutaPlant(spec)
        self._substeps = math.ceil(spec.dt / spec.sim.substep - 1e-9)
        self._command = 0.0

    @property
    def spec(self) -> RobotSpec:
        """Return the description the robot was built from."""
        return self._spec

    @property
    @abstractmethod
    def motion(self) -> Motion:
        """Return the true motion, which no observation sees; for checks of the physics."""

    @motion.setter
    @abstractmethod
    def motion(self, motion: Motion) -> None: ...

    def reset(self, rng: np.random.Generator) -> RobotState:
        """Return the state an episode starts from, drawn from the reset ranges."""
        self.motion = self._plant.start(rng)
        self._command = 0.0
        return self._plant.first_reading(self.motion)

    def command(self, target: Vector) -> None:
        """Take the arm's torque [N m], [1]; it holds until the next one."""
        self._command = float(target[0])

    @abstractmethod
    def read(self) -> RobotState:
        """Return the state one control period later."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what the physics hold; a second call does nothing."""
