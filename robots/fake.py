"""A robot without physics engine or hardware: one double-integrator joint, with faults to inject."""

from typing import Literal

import numpy as np

from robots.robot import RobotState, Vector
from robots.robot_file import parse_robot
from robots.spec import RobotSpec

INERTIA = 1.0
"""[kg m^2]"""

FAKE_ROBOT = """
schema = 1
name = "fake"
control_hz = 50.0
rate_tolerance = 0.1
command_valid = 0.1
stop_policy = "off"
estop_policy = "off"
stop_time = 1.0
rearm = "operator"

[[joint]]
name = "joint"
actuator = "torque"
position = [-3.0, 3.0]
speed = 10.0
torque = 5.0

[observation]
speed_filter_time = 0.01
channels = [
  { name = "position", joint = "joint", signal = "position", unit = "rad", center = 0.0, scale = 1.0 },
  { name = "speed", joint = "joint", signal = "speed", unit = "rad/s", center = 0.0, scale = 2.0 },
]

[action]
range = [[-5.0, 5.0]]

[reset]
position = [[-1.0, 1.0]]
speed = [[0.0, 0.0]]

[link]

[sim]
model = "fake"
asset = ""
substep = 0.02
encoder_counts = 4096

[sim.motor]
supply_voltage = 24.0
resistance = 1.0
torque_constant = 1.0

[sim.friction.joint]
coulomb = 0.0
viscous = 0.0

[randomize]

[task]
name = "reach-zero"
episode_time = 2.0
judged_time = 1.0
goal_tolerance = 0.1
success_share = 0.9
"""


def fake_spec() -> RobotSpec:
    """Return the description of the fake robot."""
    return parse_robot(FAKE_ROBOT.encode(), "fake robot")


class FakeRobot:
    """A Robot with exact positions, no friction, and a sensor that can be made to fail.

    Set fault to "nan" and the next readings are not numbers; to "stuck" and they repeat the last good one.
    Set it to "none" to mend it; a reset mends nothing.
    """

    def __init__(self, spec: RobotSpec | None = None) -> None:
        self._spec = spec or fake_spec()
        self.fault: Literal["none", "nan", "stuck"] = "none"
        self.closed = False
        self._position = self._speed = self._torque = self._time = 0.0
        self._shown = (0.0, 0.0)

    @property
    def spec(self) -> RobotSpec:
        """Return the description the robot was built from."""
        return self._spec

    def reset(self, rng: np.random.Generator) -> RobotState:
        """Return the state an episode starts from, drawn from the reset ranges."""
        self._position = rng.uniform(*self._spec.reset.position[0])
        self._speed = rng.uniform(*self._spec.reset.speed[0])
        self._torque = self._time = 0.0
        return self._reading()

    def command(self, target: Vector) -> None:
        """Take the joint's torque [N m], [1]; it holds until the next one."""
        self._torque = float(target[0])

    def read(self) -> RobotState:
        """Return the state one control period later."""
        dt, acceleration = self._spec.dt, self._torque / INERTIA
        self._position += self._speed * dt + 0.5 * acceleration * dt * dt
        self._speed += acceleration * dt
        self._time += dt
        return self._reading()

    def close(self) -> None:
        """Note that the robot was let go of."""
        self.closed = True

    def _reading(self) -> RobotState:
        if self.fault == "nan":
            shown = (float("nan"), float("nan"))
        elif self.fault == "stuck":
            shown = self._shown
        else:
            shown = self._shown = (self._position, self._speed)
        position, speed = (np.array([value], dtype=np.float32) for value in shown)
        return RobotState(position, speed, self._time, 0.0)
