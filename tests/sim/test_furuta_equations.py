"""The equations of motion, checked against what physics says of any such machine."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest

from robots.errors import SpecError
from robots.robot_file import load_robot
from sim.equations_robot import EquationsRobot
from sim.furuta_equations import Motion, accelerations, advance, energy, furuta_body
from sim.registration import ASSETS

BODY = furuta_body(ASSETS / "furuta.urdf")


def random_motions(count: int) -> list[Motion]:
    """Return motions all over the range a swing-up visits."""
    rng = np.random.default_rng(3)
    return [
        (rng.uniform(-2, 2), rng.uniform(-math.pi, math.pi), rng.uniform(-8, 8), rng.uniform(-15, 15))
        for _ in range(count)
    ]


@pytest.mark.parametrize("start", random_motions(5))
def test_energy_is_kept_without_friction_for_10_s(start: Motion) -> None:
    motion, first = start, energy(BODY, start)
    for _ in range(10_000):
        motion = advance(BODY, motion, 0.0, 0.0, 0.001)
        # The bound is the requirement; Runge-Kutta of fourth order at 1 ms leaves under 1e-6 of it.
        assert abs(energy(BODY, motion) - first) <= 0.005 * first


@pytest.mark.parametrize("motion", random_motions(20))
def test_power_at_the_joints_is_the_change_of_energy(motion: Motion) -> None:
    torques, dt = (0.02, -0.003), 1e-5
    later, earlier = advance(BODY, motion, *torques, dt), advance(BODY, motion, *torques, -dt)
    change = (energy(BODY, later) - energy(BODY, earlier)) / (2 * dt)
    # A central difference over 1e-5 s of energies near 0.03 J is good to about 1e-9 W.
    assert change == pytest.approx(torques[0] * motion[2] + torques[1] * motion[3], abs=1e-7)


def test_angular_momentum_about_the_motor_axis_is_kept_by_a_free_arm() -> None:
    motion = (0.3, 2.0, 4.0, -7.0)

    def momentum(now: Motion) -> float:
        _, angle, arm_speed, speed = now
        inertia = BODY.arm + BODY.lift * math.sin(angle) ** 2
        return inertia * arm_speed + BODY.coupling * math.cos(angle) * speed

    first = momentum(motion)
    for _ in range(2000):
        motion = advance(BODY, motion, 0.0, 0.0, 0.001)
    # Gravity has no moment about a vertical axis; what is left is the integrator's error.
    assert momentum(motion) == pytest.approx(first, rel=1e-6)


def test_small_swings_with_the_arm_held_have_the_period_of_a_rod() -> None:
    # A rod of length L about its end: T = 2 pi sqrt(2 L / 3 g); the rod's thickness changes it by 0.07 %.
    period = 2 * math.pi * math.sqrt(2 * 0.129 / (3 * 9.81))
    slope = accelerations(BODY, (0.0, 1e-5, 0.0, 0.0), 0.0, 0.0)
    held = accelerations(BODY, (0.0, 1e-5, 0.0, 0.0), -BODY.coupling * BODY.weight * 1e-5 / BODY.pendulum, 0.0)
    assert held[0] == pytest.approx(0.0, abs=1e-12)
    assert 2 * math.pi / math.sqrt(-held[1] / 1e-5) == pytest.approx(period, rel=2e-3)
    assert abs(slope[1]) > abs(held[1])


def test_upright_is_an_unstable_rest() -> None:
    assert accelerations(BODY, (0.0, math.pi, 0.0, 0.0), 0.0, 0.0) == pytest.approx((0.0, 0.0), abs=1e-12)
    assert accelerations(BODY, (0.0, math.pi + 0.01, 0.0, 0.0), 0.0, 0.0)[1] > 0.0


def test_constants_are_those_of_the_data_sheet() -> None:
    # Written out from the masses and lengths in the URDF's comment, as a second reading of the same data.
    assert BODY.weight == pytest.approx(0.024 * 9.81 * 0.0645)
    assert BODY.coupling == pytest.approx(0.024 * 0.085 * 0.0645)
    assert BODY.pendulum == pytest.approx(0.024 * 0.129**2 / 3, rel=2e-3)
    rod, hub, rod_spin = 0.095 * 0.085**2 / 3, 0.5 * 0.0106 * 0.0111**2, 0.5 * 0.024 * 0.00475**2
    # The URDF's inertias are written to four digits.
    assert BODY.arm == pytest.approx(rod + 4e-6 + hub + 0.024 * 0.085**2 + rod_spin, rel=1e-4)


def test_no_constant_and_no_single_switch_of_full_torque_brings_the_pendulum_upright() -> None:
    spec = load_robot("furuta")
    torque, (lower, upper) = spec.action.range[0][1], spec.joint[0].position
    robot = EquationsRobot(spec, ASSETS / spec.sim.asset)
    highest = 0.0
    starts = list(itertools.product((-0.1, 0.0, 0.1), (-0.087, 0.0, 0.087)))
    for sign, switch, (arm, pendulum) in itertools.product((-1, 1), range(26), starts):
        robot.reset(np.random.default_rng(0))
        robot.motion = (arm, pendulum, 0.0, 0.0)
        # In half a second one push takes the arm to its cable: later switches change nothing.
        for step in range(150):
            robot.command(np.array([sign * torque if step < switch else -sign * torque], dtype=np.float32))
            robot.read()
            highest = max(highest, abs(robot.motion[1]))
            if not lower < robot.motion[0] < upper:
                break
        else:
            pytest.fail("the arm never reached its cable: scan for longer")
    # 120 degrees was seen; 150 leaves the second swing more than a little to do.
    assert math.radians(90) < highest < math.radians(150)


def test_another_machines_urdf_is_refused_by_name(tmp_path: Path) -> None:
    other = tmp_path / "other.urdf"
    other.write_text("<robot name='other'><link name='base'/></robot>")
    with pytest.raises(SpecError, match=r"other\.urdf.*arm_link"):
        furuta_body(other)
