"""What motor and friction do to a torque."""

import pytest

from robots.spec import Friction, Motor
from sim.actuator import REST_SPEED, FrictionTorque, MotorTorque

MOTOR = Motor(supply_voltage=10.0, resistance=8.4, torque_constant=0.042)
STALL = 0.042 * 10.0 / 8.4
NO_LOAD = 10.0 / 0.042


@pytest.mark.parametrize(
    ("command", "speed", "delivered"),
    [
        pytest.param(0.01, 0.0, 0.01, id="followed inside every limit"),
        pytest.param(0.04, 0.0, 0.03, id="cut at the torque limit"),
        pytest.param(-0.04, 0.0, -0.03, id="cut at the torque limit backwards"),
        pytest.param(0.03, NO_LOAD / 2, STALL / 2, id="half the stall torque at half the no-load speed"),
        pytest.param(-0.03, -NO_LOAD / 2, -STALL / 2, id="the same backwards"),
        pytest.param(0.03, NO_LOAD, 0.0, id="nothing at the no-load speed"),
        pytest.param(0.03, 2 * NO_LOAD, -STALL, id="driven beyond it the motor brakes"),
        pytest.param(-0.03, NO_LOAD, -0.03, id="braking is not cut by back-EMF"),
    ],
)
def test_motor_delivers_what_its_supply_allows(command: float, speed: float, delivered: float) -> None:
    assert MotorTorque(MOTOR, limit=0.03).delivered(command, speed) == pytest.approx(min(delivered, 0.03), abs=1e-12)


@pytest.mark.parametrize("speed", [-20.0, -0.01, 0.0, 0.01, 20.0])
def test_friction_never_adds_energy(speed: float) -> None:
    assert FrictionTorque(Friction(coulomb=0.001, viscous=0.0003)).torque(speed) * speed <= 0.0


def test_coulomb_friction_is_full_beyond_the_rest_speed() -> None:
    friction = FrictionTorque(Friction(coulomb=0.001, viscous=0.0))
    assert friction.torque(REST_SPEED) == friction.torque(10.0) == -0.001
    assert friction.torque(REST_SPEED / 2) == -0.0005
    assert friction.torque(0.0) == 0.0


def test_viscous_friction_grows_with_speed() -> None:
    assert FrictionTorque(Friction(coulomb=0.0, viscous=0.0003)).torque(-4.0) == pytest.approx(0.0012)
