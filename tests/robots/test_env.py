"""The environment around any robot, on the fake one."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from robots.env import RobotEnv
from robots.errors import SensorFault, UnsafeCommand
from robots.fake import FakeRobot
from robots.reach import Reach
from robots.robot import Vector


def make() -> tuple[RobotEnv, FakeRobot]:
    """Return an environment and its robot."""
    robot = FakeRobot()
    return RobotEnv(robot, Reach(robot.spec)), robot


def home(obs: Vector) -> Vector:
    """Return the action that brings the fake joint to 0."""
    return np.clip(-(16.0 * obs[:1] + 8.0 * obs[1:2]) / 5.0, -1, 1).astype(np.float32)


def test_gymnasium_finds_nothing_wrong() -> None:
    gymnasium.register("fake-v0", entry_point=lambda: make()[0])
    check_env(gymnasium.make("fake-v0").unwrapped)
    del gymnasium.registry["fake-v0"]


def test_time_limit_truncates_and_tells_success() -> None:
    env, _ = make()
    obs, _ = env.reset(seed=0)
    for step in range(1, 101):
        obs, reward, terminated, truncated, info = env.step(home(obs))
        assert 0.0 <= reward <= 1.0
        assert not terminated
        assert truncated is (step == 100)
        assert ("success" in info) is (step == 100)
    assert info["success"]
    assert info["success_fraction"] >= 0.9


def test_an_episode_that_terminates_is_not_truncated_even_on_its_last_step() -> None:
    env, robot = make()
    env.reset(seed=0)
    for _ in range(99):
        env.step(np.zeros(1, np.float32))
    robot._position = 5.0
    _, _, terminated, truncated, info = env.step(np.zeros(1, np.float32))
    assert (terminated, truncated, info["success"]) == (True, False, False)


def test_a_second_episode_is_as_long_as_the_first_and_judged_afresh() -> None:
    env, robot = make()
    obs, _ = env.reset(seed=0)
    for _ in range(99):
        obs, _, _, _, info = env.step(home(obs))
    assert info["success_fraction"] > 0.9
    env.reset(seed=1)
    for step in range(1, 101):
        robot._position, robot._speed = 1.0, 0.0
        _, _, _, truncated, info = env.step(np.zeros(1, np.float32))
        assert info["success_fraction"] == 0.0
        assert truncated is (step == 100)


def test_applied_is_what_the_robot_was_sent() -> None:
    env, robot = make()
    _, info = env.reset(seed=0)
    assert info["applied"].tolist() == [0.0]
    _, _, _, _, info = env.step(np.array([0.5], np.float32))
    assert info["applied"].tolist() == [2.5] == [robot._torque]
    assert info["applied"].dtype == np.float32


def test_safety_filter_stands_between_policy_and_robot() -> None:
    env, robot = make()
    env.reset(seed=0)
    robot._position = 3.5
    env.step(np.zeros(1, np.float32))
    # The last reading is outside the range: no torque further out is sent, whatever the policy says.
    _, _, _, _, info = env.step(np.ones(1, np.float32))
    assert info["applied"].tolist() == [0.0] == [robot._torque]


def test_an_action_that_is_no_number_is_not_sent() -> None:
    env, robot = make()
    env.reset(seed=0)
    env.step(np.array([0.5], np.float32))
    before = robot._time
    with pytest.raises(UnsafeCommand, match="not finite"):
        env.step(np.array([np.nan], np.float32))
    assert (robot._torque, robot._time) == (2.5, before)


def test_a_reading_that_is_no_number_never_leaves_as_an_observation() -> None:
    env, robot = make()
    env.reset(seed=0)
    robot.fault = "nan"
    with pytest.raises(SensorFault, match="observation channel position is nan"):
        env.step(np.zeros(1, np.float32))
    with pytest.raises(SensorFault, match="observation channel position is nan"):
        env.reset(seed=0)


def test_a_stuck_sensor_repeats_its_last_reading() -> None:
    env, robot = make()
    first, _ = env.reset(seed=0)
    robot.fault = "stuck"
    obs = env.step(np.ones(1, np.float32))[0]
    assert obs[0] == first[0]
    robot.fault = "none"
    assert env.step(np.ones(1, np.float32))[0][0] != first[0]


def test_a_seed_alone_determines_an_episode() -> None:
    (fresh, _), (used, _) = make(), make()
    for seed in (3, 4):
        obs, _ = used.reset(seed=seed)
        for _ in range(7):
            obs = used.step(home(obs))[0]
    a, b = fresh.reset(seed=9)[0], used.reset(seed=9)[0]
    for _ in range(20):
        assert np.array_equal(a, b)
        a, b = fresh.step(home(a))[0], used.step(home(b))[0]
    assert not np.array_equal(used.reset()[0], used.reset()[0])


def test_step_before_reset_is_refused() -> None:
    with pytest.raises(gymnasium.error.ResetNeeded, match="call reset first"):
        make()[0].step(np.zeros(1, np.float32))


def test_close_lets_go_of_the_robot() -> None:
    env, robot = make()
    env.close()
    assert robot.closed
