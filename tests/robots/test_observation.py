"""Observations: speeds filtered from positions, bounds, and faults named by channel."""

import math

import numpy as np
import pytest

from robots.errors import SensorFault
from robots.fake import fake_spec
from robots.observation import Observer
from robots.robot import RobotState
from robots.robot_file import load_robot

NO_ACTION = np.zeros(1, np.float32)


def state(*position: float) -> RobotState:
    """Return a reading at these positions whose own speeds are wrong on purpose: nobody is to use them."""
    return RobotState(np.array(position, np.float32), np.full(len(position), 777, np.float32), 0.0, 0.0)


def test_speed_follows_the_documented_filter_from_rest() -> None:
    spec = fake_spec()
    observer = Observer(spec)
    gain = 1 - math.exp(-spec.dt / spec.observation.speed_filter_time)
    assert observer.reset(state(0.5), NO_ACTION).tolist() == [0.5, 0.0]
    expected = 0.0
    for position in (0.51, 0.53, 0.53, 0.50):
        before = observer._position[0]
        expected += gain * ((float(np.float32(position)) - before) / spec.dt - expected)
        # float32 keeps a speed of order 1 rad/s to 1e-7.
        assert observer.observe(state(position), NO_ACTION)[1] == pytest.approx(expected, abs=1e-6)


def test_a_steady_speed_is_seen_within_a_few_ticks() -> None:
    observer = Observer(fake_spec())
    observer.reset(state(0.0), NO_ACTION)
    for tick in range(1, 6):
        seen = observer.observe(state(0.02 * tick), NO_ACTION)[1]
    # Time constant 10 ms, five ticks of 20 ms: e^-10 is left.
    assert seen == pytest.approx(1.0, abs=1e-4)


def test_a_reset_forgets_the_last_episodes_speed() -> None:
    observer = Observer(fake_spec())
    observer.reset(state(0.0), NO_ACTION)
    observer.observe(state(1.0), NO_ACTION)
    assert observer.reset(state(-1.0), NO_ACTION)[1] == 0.0
    assert observer.observe(state(-1.0), NO_ACTION)[1] == 0.0


def test_furuta_channels_are_what_their_names_say() -> None:
    spec = load_robot("furuta")
    observer = Observer(spec)
    observer.reset(state(0.25, math.pi - 0.1), NO_ACTION)
    obs = observer.observe(state(0.25, math.pi - 0.1), np.array([-0.5], np.float32))
    seen = dict(zip([channel.name for channel in spec.observation.channels], obs.tolist(), strict=True))
    assert seen == pytest.approx(
        {
            "arm_position": 0.25,
            "pendulum_sin": math.sin(0.1),
            "pendulum_cos": -math.cos(0.1),
            "arm_speed": 0.0,
            "pendulum_speed": 0.0,
            "previous_action": -0.5,
        },
        abs=1e-6,  # float32
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reading_that_is_no_number_is_refused_by_its_channel(bad: float) -> None:
    observer = Observer(load_robot("furuta"))
    observer.reset(state(0.0, 0.0), NO_ACTION)
    with pytest.raises(SensorFault, match=r"observation channel pendulum_sin is (nan|inf|-inf)"):
        observer.observe(state(0.0, bad), NO_ACTION)
    with pytest.raises(SensorFault, match="observation channel arm_position"):
        observer.reset(state(bad, 0.0), NO_ACTION)


def test_observations_stay_inside_their_bounds() -> None:
    observer = Observer(load_robot("furuta"))
    observer.reset(state(0.0, 0.0), NO_ACTION)
    obs = observer.observe(state(30.0, 900.0), NO_ACTION)
    assert np.all(obs >= observer.lower)
    assert np.all(obs <= observer.upper)
    assert obs[0] == 4.0


def test_nominal_ranges_bring_a_swing_up_to_order_one() -> None:
    spec = load_robot("furuta")
    center = np.array([channel.center for channel in spec.observation.channels])
    scale = np.array([channel.scale for channel in spec.observation.channels])
    # Extremes of a swing-up: arm at its cable, 25 rad/s of either joint.
    extreme = np.array([2.0, 1.0, 1.0, 24.0, 25.0, 1.0])
    assert np.all(np.abs((extreme - center) / scale) <= 3.0)
