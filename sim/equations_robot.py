"""The twin of the Furuta pendulum that needs nothing but its equations of motion."""

import math
from pathlib import Path

import numpy as np

from robots.robot import RobotState, Vector
from robots.spec import RobotSpec
from sim.furuta_equations import Motion, advance, furuta_body
from sim.furuta_plant import FurutaPlant


class EquationsRobot:
    """A Robot whose physics are the equations of motion."""

    def __init__(self, spec: RobotSpec, asset: Path) -> None:
        self._spec = spec
        self._body = furuta_body(asset)
        self._plant = FurutaPlant(spec)
        self._substeps = math.ceil(spec.dt / spec.sim.substep - 1e-9)
        self._motion: Motion = (0.0, 0.0, 0.0, 0.0)
        self._command = 0.0

    @property
    def spec(self) -> RobotSpec:
        """Return the description the robot was built from."""
        return self._spec

    @property
    def motion(self) -> Motion:
        """Return the true motion, which no observation sees; for checks of the physics."""
        return self._motion

    @motion.setter
    def motion(self, motion: Motion) -> None:
        self._motion = motion

    def reset(self, rng: np.random.Generator) -> RobotState:
        """Return the state an episode starts from, drawn from the reset ranges."""
        self._motion = self._plant.start(rng)
        self._command = 0.0
        return self._plant.first_reading(self._motion)

    def command(self, target: Vector) -> None:
        """Take the arm's torque [N m], [1]; it holds until the next one."""
        self._command = float(target[0])

    def read(self) -> RobotState:
        """Return the state one control period later."""
        body, plant, motion, command = self._body, self._plant, self._motion, self._command
        dt = self._spec.dt / self._substeps
        for _ in range(self._substeps):
            motion = advance(body, motion, *plant.torques(command, motion[2], motion[3]), dt)
        self._motion = motion
        return plant.reading(motion)

    def close(self) -> None:
        """Do nothing: there is nothing to let go of."""
