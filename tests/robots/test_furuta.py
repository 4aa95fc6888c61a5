"""The swing-up task: its reward, its end, and what it calls success."""

import math

import numpy as np
import pytest

from robots.errors import SpecError
from robots.fake import fake_spec
from robots.furuta import ARM_WEIGHT, CALM_SPEED, SwingUp
from robots.robot import RobotState
from robots.robot_file import load_robot
from robots.task import Outcome


def state(arm: float, pendulum: float, speed: float = 0.0) -> RobotState:
    """Return a reading."""
    return RobotState(np.array([arm, pendulum], np.float32), np.array([0.0, speed], np.float32), 0.0, 0.0)


def outcome(arm: float, pendulum: float, speed: float = 0.0) -> Outcome:
    """Return the outcome of an episode's first step."""
    task = SwingUp(load_robot("furuta"))
    task.reset()
    return task.step(state(arm, pendulum, speed))


@pytest.mark.parametrize(
    ("arm", "pendulum", "speed", "reward"),
    [
        pytest.param(0.0, math.pi, 0.0, 1.0, id="upright at rest in the middle"),
        pytest.param(0.0, 0.0, 0.0, 0.0, id="hanging"),
        pytest.param(0.0, math.pi / 2, 0.0, 0.5, id="level"),
        pytest.param(1.0, math.pi, 0.0, 1 - ARM_WEIGHT / 4, id="arm half way out"),
        pytest.param(-2.0, math.pi, 0.0, 1 - ARM_WEIGHT, id="arm at its cable"),
        pytest.param(0.0, -math.pi, CALM_SPEED, 0.5, id="rushing through upright"),
    ],
)
def test_reward_is_as_documented(arm: float, pendulum: float, speed: float, reward: float) -> None:
    assert outcome(arm, pendulum, speed).reward == pytest.approx(reward, abs=1e-6)  # float32 angles


def test_reward_stays_in_zero_to_one_wherever_a_reading_lies() -> None:
    rng = np.random.default_rng(0)
    for arm, pendulum, speed in rng.uniform((-50, -900, -300), (50, 900, 300), (2000, 3)):
        assert 0.0 <= outcome(arm, pendulum, speed).reward <= 1.0


def test_going_round_pays_far_less_than_standing() -> None:
    # Just enough energy to go round, at the rod's own gravity: the speed at angle a is 2 w |sin|-like.
    natural = math.sqrt(3 * 9.81 / (2 * 0.129))
    angle, speed, total, ticks = 0.0, 2.1 * natural, 0.0, 5000
    for _ in range(ticks):
        speed -= natural**2 * math.sin(angle) * 0.001
        angle += speed * 0.001
        total += outcome(0.0, angle, speed).reward
    assert total / ticks < 0.4


@pytest.mark.parametrize(("arm", "ends"), [(1.999, False), (2.0, True), (-1.999, False), (-2.0, True), (3.0, True)])
def test_the_cable_limit_ends_the_episode(arm: float, ends: bool) -> None:
    assert outcome(arm, math.pi).terminated is ends


def test_success_is_the_share_of_the_last_five_seconds_within_ten_degrees() -> None:
    task = SwingUp(load_robot("furuta"))
    task.reset()
    good, bad = state(0.0, math.pi + math.radians(9.9)), state(0.0, math.pi - math.radians(10.1))
    for _ in range(250):
        assert task.step(good).success_fraction == 0.0
    for held in range(1, 201):
        assert task.step(good).success_fraction == held / 250
    for _ in range(50):
        last = task.step(bad)
    assert last.success_fraction == 0.8
    task.reset()
    assert task.step(good).success_fraction == 0.0


def test_a_full_turn_more_is_upright_too() -> None:
    assert outcome(0.0, 7 * math.pi).reward == pytest.approx(1.0)


def test_another_robot_is_refused() -> None:
    with pytest.raises(SpecError, match=r"\['joint'\].*expects \['arm', 'pendulum'\]"):
        SwingUp(fake_spec())
