"""The twin of the Furuta pendulum in PyBullet."""

import math
from pathlib import Path

import numpy as np

from robots.robot import RobotState, Vector
from robots.spec import RobotSpec
from sim.furuta_equations import Motion
from sim.furuta_plant import FurutaPlant
from sim.world import World


class PyBulletRobot:
    """A Robot whose physics are PyBullet's; it holds one client until it is closed."""

    def __init__(self, spec: RobotSpec, asset: Path) -> None:
        self._spec = spec
        self._plant = FurutaPlant(spec)
        self._substeps = math.ceil(spec.dt / spec.sim.substep - 1e-9)
        self._world = World(asset, tuple(joint.name for joint in spec.joint), spec.dt / self._substeps)
        self._command = 0.0

    @property
    def spec(self) -> RobotSpec:
        """Return the description the robot was built from."""
        return self._spec

    @property
    def motion(self) -> Motion:
        """Return the true motion, which no observation sees; for checks of the physics."""
        arm, pendulum = self._world.positions
        arm_speed, speed = self._world.speeds
        return arm, pendulum, arm_speed, speed

    @motion.setter
    def motion(self, motion: Motion) -> None:
        self._world.place(motion[:2], motion[2:])

    def reset(self, rng: np.random.Generator) -> RobotState:
        """Return the state an episode starts from, drawn from the reset ranges."""
        self.motion = self._plant.start(rng)
        self._command = 0.0
        return self._plant.first_reading(self.motion)

    def command(self, target: Vector) -> None:
        """Take the arm's torque [N m], [1]; it holds until the next one."""
        self._command = float(target[0])

    def read(self) -> RobotState:
        """Return the state one control period later."""
        world, plant, command = self._world, self._plant, self._command
        for _ in range(self._substeps):
            arm_speed, speed = world.speeds
            world.advance(plant.torques(command, arm_speed, speed))
        return plant.reading(self.motion)

    def close(self) -> None:
        """Disconnect PyBullet's client; a second call does nothing."""
        self._world.close()
