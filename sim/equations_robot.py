"""The twin of the Furuta pendulum that needs nothing but its equations of motion."""

from pathlib import Path

from robots.robot import RobotState
from robots.spec import RobotSpec
from sim.furuta_equations import Motion, advance, furuta_body
from sim.furuta_twin import FurutaTwin


class EquationsRobot(FurutaTwin):
    """A Robot whose physics are the equations of motion."""

    def __init__(self, spec: RobotSpec, asset: Path) -> None:
        super().__init__(spec)
        self._body = furuta_body(asset)
        self._motion: Motion = (0.0, 0.0, 0.0, 0.0)

    @property
    def motion(self) -> Motion:
        """Return the true motion, which no observation sees; for checks of the physics."""
        return self._motion

    @motion.setter
    def motion(self, motion: Motion) -> None:
        self._motion = motion

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
