"""The twin of the Furuta pendulum in PyBullet."""

from pathlib import Path

from robots.robot import RobotState
from robots.spec import RobotSpec
from sim.furuta_equations import Motion
from sim.furuta_twin import FurutaTwin
from sim.world import World


class PyBulletRobot(FurutaTwin):
    """A Robot whose physics are PyBullet's; it holds one client until it is closed."""

    def __init__(self, spec: RobotSpec, asset: Path) -> None:
        super().__init__(spec)
        self._world = World(asset, tuple(joint.name for joint in spec.joint), spec.dt / self._substeps)

    @property
    def motion(self) -> Motion:
        """Return the true motion, which no observation sees; for checks of the physics."""
        arm, pendulum = self._world.positions
        arm_speed, speed = self._world.speeds
        return arm, pendulum, arm_speed, speed

    @motion.setter
    def motion(self, motion: Motion) -> None:
        self._world.place(motion[:2], motion[2:])

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
