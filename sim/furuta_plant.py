"""What both twins of the Furuta pendulum share: its start, its joint torques, what its encoders tell."""

import numpy as np

from robots.errors import SpecError
from robots.robot import RobotState
from robots.spec import FreeJoint, RobotSpec, TorqueJoint
from sim.actuator import FrictionTorque, MotorTorque
from sim.furuta_equations import Motion
from sim.sensors import Encoder


class FurutaPlant:
    """Start, torques and readings; the physics between them belongs to the twin."""

    def __init__(self, spec: RobotSpec) -> None:
        arm, pendulum = spec.joint if len(spec.joint) == 2 else (None, None)
        if not isinstance(arm, TorqueJoint) or not isinstance(pendulum, FreeJoint):
            kinds = [f"{joint.name}: {joint.actuator}" for joint in spec.joint]
            raise SpecError(f"{spec.name}: joints are {kinds}: expected an arm with torque, then a free pendulum")
        self._reset = spec.reset
        self._dt = spec.dt
        self._motor = MotorTorque(spec.sim.motor, arm.torque).delivered
        self._arm_friction = FrictionTorque(spec.sim.friction[arm.name]).torque
        self._pendulum_friction = FrictionTorque(spec.sim.friction[pendulum.name]).torque
        self._encoder = Encoder(spec.sim.encoder_counts)
        self._ticks = 0
        self._last = (0.0, 0.0)

    def start(self, rng: np.random.Generator) -> Motion:
        """Return the motion of a new episode, uniform in the reset ranges."""
        arm, pendulum = (rng.uniform(lower, upper) for lower, upper in self._reset.position)
        arm_speed, speed = (rng.uniform(lower, upper) for lower, upper in self._reset.speed)
        return arm, pendulum, arm_speed, speed

    def torques(self, command: float, arm_speed: float, speed: float) -> tuple[float, float]:
        """Return the torques [N m] at arm and pendulum for a command [N m] at their speeds [rad/s]."""
        return (
            self._motor(command, arm_speed) + self._arm_friction(arm_speed),
            self._pendulum_friction(speed),
        )

    def first_reading(self, motion: Motion) -> RobotState:
        """Return the reading at an episode's start, which sets the clock to 0."""
        self._ticks = 0
        self._last = self._encoder.measured(motion[0]), self._encoder.measured(motion[1])
        return RobotState(np.array(self._last, np.float32), np.zeros(2, np.float32), 0.0, 0.0)

    def reading(self, motion: Motion) -> RobotState:
        """Return the encoders' reading one control period after the last; speed is their plain difference."""
        self._ticks += 1
        now = self._encoder.measured(motion[0]), self._encoder.measured(motion[1])
        speed = ((now[0] - self._last[0]) / self._dt, (now[1] - self._last[1]) / self._dt)
        self._last = now
        return RobotState(np.array(now, np.float32), np.array(speed, np.float32), self._ticks * self._dt, 0.0)
