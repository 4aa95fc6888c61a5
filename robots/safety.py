"""The last filter on the host before a command leaves: a pure function of command, state and limits."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robots.errors import UnsafeCommand
from robots.robot import Vector
from robots.spec import PositionJoint, RobotSpec


@dataclass(frozen=True, slots=True)
class JointLimits:
    """The limits of the actuated joints, arrays [A]."""

    lower: Vector
    """[rad]"""
    upper: Vector
    """[rad]"""
    speed: Vector
    """[rad/s]"""
    torque: Vector
    """[N m]"""
    by_position: NDArray[np.bool_]
    """True where the command is a position, False where it is a torque."""


def joint_limits(spec: RobotSpec) -> JointLimits:
    """Return the limits of the actuated joints of a robot."""
    joints = spec.actuated
    return JointLimits(
        lower=np.array([joint.position[0] for joint in joints], dtype=np.float32),
        upper=np.array([joint.position[1] for joint in joints], dtype=np.float32),
        speed=np.array([joint.speed for joint in joints], dtype=np.float32),
        torque=np.array([joint.torque for joint in joints], dtype=np.float32),
        by_position=np.array([isinstance(joint, PositionJoint) for joint in joints], dtype=np.bool_),
    )


def limit_target(target: Vector, position: Vector, speed: Vector, limits: JointLimits, dt: float) -> Vector:
    """Return the allowed command nearest to target; all arrays [A], dt in s.

    A position is clipped to [lower, upper], then to speed * dt of the measured one: in this order a joint
    found outside its range is walked back in at the allowed speed instead of jumping. A torque is clipped
    to the torque limit; outside the range only a torque that leads back in passes, and above the allowed
    speed only one that brakes. Raises UnsafeCommand if target, position or speed is not finite: clipping a
    NaN would hide a diverged policy or a dead sensor.
    """
    for name, values in (("target", target), ("measured position", position), ("measured speed", speed)):
        if not np.isfinite(values).all():
            raise UnsafeCommand(f"{name} {values} is not finite: expected numbers; nothing was sent")
    reach = limits.speed * np.float32(dt)
    place = np.minimum(np.maximum(target, limits.lower), limits.upper)
    place = np.minimum(np.maximum(place, position - reach), position + reach)
    high = np.where((position > limits.upper) | (speed > limits.speed), np.float32(0), limits.torque)
    low = np.where((position < limits.lower) | (speed < -limits.speed), np.float32(0), -limits.torque)
    torque = np.minimum(np.maximum(target, low), high)
    return np.where(limits.by_position, place, torque).astype(np.float32)
