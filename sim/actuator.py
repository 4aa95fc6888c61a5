"""Joint torques of a brushed DC motor and of friction, in plain floats: the same for every twin.

The driver controls current, so a torque command is followed as long as the supply can push the current
against the back-EMF: torque <= k (V - k speed) / R. Friction opposes motion; the Coulomb part rises linearly
to its full value within REST_SPEED, since a jump at zero speed would chatter at any step size.
"""

from robots.spec import Friction, Motor

REST_SPEED = 0.05
"""[rad/s] below which Coulomb friction is not yet full; a third of one encoder count per period."""


class MotorTorque:
    """What a motor delivers of a commanded torque."""

    def __init__(self, motor: Motor, limit: float) -> None:
        self._limit = limit
        self._stall = motor.torque_constant * motor.supply_voltage / motor.resistance
        self._droop = motor.torque_constant**2 / motor.resistance

    def delivered(self, command: float, speed: float) -> float:
        """Return the torque at the shaft [N m] for a command [N m] at a speed [rad/s]."""
        back = self._droop * speed
        torque = min(max(command, -self._limit), self._limit)
        return min(max(torque, -self._stall - back), self._stall - back)


class FrictionTorque:
    """Coulomb and viscous friction of one joint."""

    def __init__(self, friction: Friction) -> None:
        self._coulomb = friction.coulomb
        self._viscous = friction.viscous

    def torque(self, speed: float) -> float:
        """Return the torque [N m] that friction adds at a speed [rad/s]."""
        share = min(max(speed / REST_SPEED, -1.0), 1.0)
        return -self._coulomb * share - self._viscous * speed
