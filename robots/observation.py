"""Observations from measured positions alone.

Speeds are the difference of two positions over the control period, passed through a first-order filter:
speed += (1 - exp(-dt / filter_time)) * (difference / dt - speed). The filter starts every episode at rest
on the first position. A difference of encoder counts is one period old on average by half, so the filter
must add little: the noise it leaves is one count per period.
"""

import math

import numpy as np

from robots.errors import SensorFault
from robots.robot import RobotState, Vector
from robots.spec import Joint, RobotSpec


class Observer:
    """The state of the speed filters, and the observation it makes of each reading."""

    def __init__(self, spec: RobotSpec) -> None:
        self._dt = spec.dt
        self._gain = -math.expm1(-spec.dt / spec.observation.speed_filter_time)
        joints = {joint.name: index for index, joint in enumerate(spec.joint)}
        driven = {joint.name: index for index, joint in enumerate(spec.actuated)}
        self._channels = tuple(
            (
                channel.name,
                channel.signal,
                driven[channel.joint] if channel.signal == "previous_action" else joints[channel.joint],
            )
            for channel in spec.observation.channels
        )
        bounds = [_bounds(channel.signal, spec.joint[joints[channel.joint]]) for channel in spec.observation.channels]
        self._lower, self._upper = [lower for lower, _ in bounds], [upper for _, upper in bounds]
        self._position: list[float] = []
        self._speed: list[float] = []

    @property
    def lower(self) -> Vector:
        """Return the smallest value of each channel, [O]."""
        return np.array(self._lower, dtype=np.float32)

    @property
    def upper(self) -> Vector:
        """Return the largest value of each channel, [O]."""
        return np.array(self._upper, dtype=np.float32)

    @property
    def speed(self) -> Vector:
        """Return the filtered speeds [rad/s], [J]."""
        return np.array(self._speed, dtype=np.float32)

    def reset(self, state: RobotState, previous_action: Vector) -> Vector:
        """Return the first observation of an episode, [O]; all speeds are 0. Raises SensorFault."""
        self._position = [float(value) for value in state.position]
        self._speed = [0.0] * len(self._position)
        return self._observation(previous_action)

    def observe(self, state: RobotState, previous_action: Vector) -> Vector:
        """Return the observation one control period later, [O], inside [lower, upper].

        previous_action is [A] in [-1, 1]. Raises SensorFault naming the channel that is not finite.
        """
        position = [float(value) for value in state.position]
        for joint, (now, before) in enumerate(zip(position, self._position, strict=True)):
            self._speed[joint] += self._gain * ((now - before) / self._dt - self._speed[joint])
        self._position = position
        return self._observation(previous_action)

    def _observation(self, previous_action: Vector) -> Vector:
        values = []
        for (name, signal, index), lower, upper in zip(self._channels, self._lower, self._upper, strict=True):
            if signal == "previous_action":
                value = float(previous_action[index])
            elif signal == "speed":
                value = self._speed[index]
            else:
                value = self._position[index]
            if not math.isfinite(value):
                raise SensorFault(f"observation channel {name} is {value}: expected a finite number; check its sensor")
            if signal == "sin":
                value = math.sin(value)
            elif signal == "cos":
                value = math.cos(value)
            values.append(min(max(value, lower), upper))
        return np.array(values, dtype=np.float32)


def _bounds(signal: str, joint: Joint) -> tuple[float, float]:
    """Return the range of a signal; a position may pass its limit by half the range before it is cut off."""
    if signal == "position":
        lower, upper = joint.position
        return lower - (upper - lower) / 2, upper + (upper - lower) / 2
    if signal == "speed":
        return -joint.speed, joint.speed
    return -1.0, 1.0
