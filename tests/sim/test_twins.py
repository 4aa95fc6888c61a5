"""The two twins against each other and against physics; PyBullet's share is skipped where it is missing."""

import math

import msgspec
import numpy as np
import pytest

from robots.robot_file import load_robot
from robots.spec import Friction, RobotSpec
from sim.equations_robot import EquationsRobot
from sim.furuta_equations import Motion, energy, furuta_body
from sim.pybullet_robot import PyBulletRobot
from sim.registration import ASSETS

ASSET = ASSETS / "furuta.urdf"


def frictionless() -> RobotSpec:
    """Return the robot without friction."""
    spec = load_robot("furuta")
    none = {joint.name: Friction(coulomb=0.0, viscous=0.0) for joint in spec.joint}
    return msgspec.structs.replace(spec, sim=msgspec.structs.replace(spec.sim, friction=none))


def random_motions(count: int, seed: int) -> list[Motion]:
    """Return motions all over the range a swing-up visits."""
    rng = np.random.default_rng(seed)
    return [
        (rng.uniform(-2, 2), rng.uniform(-math.pi, math.pi), rng.uniform(-8, 8), rng.uniform(-15, 15))
        for _ in range(count)
    ]


@pytest.mark.parametrize("start", random_motions(5, seed=4))
def test_pybullet_keeps_energy_without_friction_for_10_s(start: Motion) -> None:
    pytest.importorskip("pybullet")
    robot, body = PyBulletRobot(frictionless(), ASSET), furuta_body(ASSET)
    robot.reset(np.random.default_rng(0))
    robot.motion = start
    first = energy(body, start)
    for _ in range(500):
        robot.read()
        # The bound is the requirement; plain Bullet at 1 ms loses 3 to 9 %, the corrected step 0.05 %.
        assert abs(energy(body, robot.motion) - first) <= 0.005 * first
    robot.close()


def test_twins_agree_from_random_states_under_changing_torque_for_half_a_second() -> None:
    pytest.importorskip("pybullet")
    spec = load_robot("furuta")
    bullet, equations = PyBulletRobot(spec, ASSET), EquationsRobot(spec, ASSET)
    rng = np.random.default_rng(6)
    for start in random_motions(20, seed=5):
        for robot in (bullet, equations):
            robot.reset(np.random.default_rng(0))
            robot.motion = start
        for _ in range(25):
            torque = rng.uniform(*spec.action.range[0], 1).astype(np.float32)
            for robot in (bullet, equations):
                robot.command(torque)
                robot.read()
            # 2 degrees is required; 0.02 was measured, and ten times that shows a step gone back to first order.
            assert bullet.motion[:2] == pytest.approx(equations.motion[:2], abs=math.radians(0.2))
    bullet.close()


def test_friction_brings_both_twins_to_rest_hanging(physics: str) -> None:
    spec = load_robot("furuta")
    robot = PyBulletRobot(spec, ASSET) if physics == "pybullet" else EquationsRobot(spec, ASSET)
    robot.reset(np.random.default_rng(0))
    robot.motion = (0.0, 1.0, 3.0, 0.0)
    for _ in range(30 * 50):
        robot.read()
    # 30 s is more than five time constants of the pendulum's damping, the lightest: under a degree is left.
    assert abs(robot.motion[1]) < math.radians(1)
    assert abs(robot.motion[2]) < 0.01
    robot.close()


def test_reading_is_encoder_counts_and_carries_the_device_clock(physics: str) -> None:
    spec = load_robot("furuta")
    robot = PyBulletRobot(spec, ASSET) if physics == "pybullet" else EquationsRobot(spec, ASSET)
    robot.reset(np.random.default_rng(0))
    robot.read()
    before = robot.reset(np.random.default_rng(1))
    assert before.time == 0.0
    for tick in range(1, 20):
        robot.command(np.array([0.02], dtype=np.float32))
        state = robot.read()
        counts = state.position.astype(np.float64) * spec.sim.encoder_counts / (2 * math.pi)
        # float32 keeps an angle of some rad to 1e-7 of it: under 1e-3 counts.
        assert counts == pytest.approx(np.round(counts), abs=1e-3)
        assert np.all(np.abs(state.position - robot.motion[:2]) <= 2 * math.pi / spec.sim.encoder_counts + 1e-6)
        assert state.time == pytest.approx(tick / 50)
        assert state.age == 0.0
        assert state.speed == pytest.approx((state.position - before.position) * 50, abs=1e-4)
        before = state
    robot.close()


def test_a_reset_leaves_no_trace_of_an_earlier_command(physics: str) -> None:
    spec = load_robot("furuta")
    robot = PyBulletRobot(spec, ASSET) if physics == "pybullet" else EquationsRobot(spec, ASSET)
    robot.reset(np.random.default_rng(1))
    fresh = [robot.read().position for _ in range(20)]
    robot.command(np.array([0.03], dtype=np.float32))
    robot.read()
    robot.reset(np.random.default_rng(1))
    again = [robot.read().position for _ in range(20)]
    robot.close()
    assert np.array_equal(fresh, again)
