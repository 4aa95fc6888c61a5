"""What both twins share: joint torques and the machine they refuse."""

import msgspec
import pytest

from robots.errors import SpecError
from robots.robot_file import load_robot
from sim.furuta_plant import FurutaPlant


def test_torques_are_the_motors_and_the_friction_of_each_joint() -> None:
    spec = load_robot("furuta")
    arm, pendulum = spec.sim.friction["arm"], spec.sim.friction["pendulum"]
    torques = FurutaPlant(spec).torques(0.01, 2.0, -3.0)
    assert torques[0] == pytest.approx(0.01 - arm.coulomb - arm.viscous * 2.0)
    assert torques[1] == pytest.approx(pendulum.coulomb + pendulum.viscous * 3.0)


def test_a_machine_whose_joints_come_in_another_order_is_refused() -> None:
    spec = load_robot("furuta")
    swapped = msgspec.structs.replace(spec, joint=spec.joint[::-1])
    with pytest.raises(SpecError, match=r"furuta: joints are \['pendulum: none', 'arm: torque'\]"):
        FurutaPlant(swapped)
