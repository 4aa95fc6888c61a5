"""What a robot's description says, section by section: firmware limits, twin and contract derive from it.

Limits have no defaults. `robots.robot_file` reads a description and checks it.
"""

from typing import ClassVar, Literal, TypeAlias

import msgspec

Range: TypeAlias = tuple[float, float]


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of every section: unknown keys are errors, values do not change."""


class _Joint(_Section, frozen=True, kw_only=True):
    """What every joint is: a name, a sensor, and the limits it must keep."""

    name: str
    position: Range
    """Allowed range, or where it is not driven the range its sensor can report [rad]."""
    speed: float
    """Largest allowed speed, or where it is not driven the largest the mechanics can reach [rad/s]."""
    sign: Literal[-1, 1] = 1
    """-1 where the encoder counts against the positive direction."""
    zero: float = 0.0
    """Encoder angle at the joint's zero [rad]."""


class TorqueJoint(_Joint, frozen=True, kw_only=True, tag_field="actuator", tag="torque"):
    """A joint that is commanded a torque."""

    torque: float
    """Largest torque that may be commanded [N m]."""
    actuator: ClassVar[str] = "torque"


class PositionJoint(_Joint, frozen=True, kw_only=True, tag_field="actuator", tag="position"):
    """A joint that is commanded a position and follows it by its own controller."""

    torque: float
    """Largest torque its controller may use [N m]."""
    gains: Range
    """Stiffness [N m/rad] and damping [N m s/rad] of its controller."""
    actuator: ClassVar[str] = "position"


class FreeJoint(_Joint, frozen=True, kw_only=True, tag_field="actuator", tag="none"):
    """A joint that is measured and not driven."""

    actuator: ClassVar[str] = "none"


Joint: TypeAlias = TorqueJoint | PositionJoint | FreeJoint
ActuatedJoint: TypeAlias = TorqueJoint | PositionJoint


class Channel(_Section, frozen=True):
    """One number of the observation: a signal of a joint, its unit and its nominal range."""

    name: str
    joint: str
    signal: Literal["position", "sin", "cos", "speed", "previous_action"]
    """sin and cos are of the joint's position; previous_action is what was last sent, in [-1, 1]."""
    unit: str
    center: float
    scale: float
    """The learner sees (value - center) / scale."""


class ObservationSection(_Section, frozen=True):
    """How readings become an observation."""

    speed_filter_time: float
    """Time constant of the first-order filter on differenced positions [s]."""
    channels: tuple[Channel, ...]


class ActionSection(_Section, frozen=True):
    """What the ends of an action in [-1, 1] mean, per actuated joint, in that joint's SI unit."""

    range: tuple[Range, ...]


class ResetSection(_Section, frozen=True):
    """Where an episode starts: each joint uniform in its range."""

    position: tuple[Range, ...]
    """[rad]"""
    speed: tuple[Range, ...]
    """[rad/s]"""


class LinkSection(_Section, frozen=True):
    """How the robot is reached."""

    url: str = ""
    """Empty: the robot exists as a twin only."""


class Motor(_Section, frozen=True):
    """A brushed DC motor with a current-controlled driver on a fixed supply."""

    supply_voltage: float
    """[V]"""
    resistance: float
    """[ohm]"""
    torque_constant: float
    """[N m/A], also the back-EMF constant [V s/rad]."""


class Friction(_Section, frozen=True):
    """Friction of one joint."""

    coulomb: float
    """[N m]"""
    viscous: float
    """[N m s/rad]"""


class SimSection(_Section, frozen=True):
    """The physical parameters of the twin; masses, lengths and inertias are in the asset."""

    model: str
    asset: str
    """URDF file, in sim/assets or beside the robot's own file."""
    substep: float
    """Longest physics step [s]."""
    encoder_counts: int
    """Counts per turn of every joint's encoder."""
    motor: Motor
    friction: dict[str, Friction]
    """By joint name."""


class TaskSection(_Section, frozen=True):
    """What counts as success, and for how long an episode runs."""

    name: str
    episode_time: float
    """[s], then the episode is truncated."""
    judged_time: float
    """[s] at the episode's end in which the goal is to hold."""
    goal_tolerance: float
    """[rad] from the goal within which it holds."""
    success_share: float
    """Share of the judged time from which the episode is a success."""


class RobotSpec(_Section, frozen=True):
    """A robot's whole description; firmware limits, twin and contract derive from it."""

    schema: Literal[1]
    name: str
    control_hz: float
    rate_tolerance: float
    """Share by which the real control rate may differ from control_hz."""
    command_valid: float
    """How long a command holds before the stop policy takes over [s]."""
    stop_policy: Literal["off", "damp", "hold", "park_then_off"]
    estop_policy: Literal["off", "damp", "hold", "park_then_off"]
    stop_time: float
    """[s]"""
    rearm: Literal["link-faults", "operator"]
    joint: tuple[Joint, ...]
    observation: ObservationSection
    action: ActionSection
    reset: ResetSection
    link: LinkSection
    sim: SimSection
    randomize: dict[str, Range]
    task: TaskSection

    @property
    def actuated(self) -> tuple[ActuatedJoint, ...]:
        """Return the joints that take a command, in order."""
        return tuple(joint for joint in self.joint if not isinstance(joint, FreeJoint))

    @property
    def dt(self) -> float:
        """Return the control period [s]."""
        return 1.0 / self.control_hz

    @property
    def episode_steps(self) -> int:
        """Return the control steps of a full episode."""
        return round(self.task.episode_time * self.control_hz)
