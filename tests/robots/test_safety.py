"""The safety filter at and beyond each limit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robots.errors import UnsafeCommand
from robots.robot_file import load_robot
from robots.safety import JointLimits, joint_limits, limit_target


def limits(by_position: bool) -> JointLimits:
    """Return one joint: +-2 rad, 10 rad/s, 0.5 N m."""
    lower, upper, speed, torque = (np.array([value], np.float32) for value in (-2.0, 2.0, 10.0, 0.5))
    return JointLimits(lower, upper, speed, torque, np.array([by_position]))


def one(target: float, position: float, speed: float, by_position: bool) -> float:
    """Return what passes of a target at a measured position and speed, 20 ms per tick."""
    vectors = (np.array([value], np.float32) for value in (target, position, speed))
    return float(limit_target(*vectors, limits(by_position), 0.02)[0])


@pytest.mark.parametrize(
    ("target", "position", "speed", "allowed"),
    [
        pytest.param(0.3, 0.0, 0.0, 0.3, id="inside every limit: untouched"),
        pytest.param(0.51, 0.0, 0.0, 0.5, id="just over the torque limit"),
        pytest.param(-9.0, 0.0, 0.0, -0.5, id="far under the torque limit"),
        pytest.param(0.3, 2.0, 0.0, 0.3, id="on the range's end: still inside"),
        pytest.param(0.3, 2.01, 0.0, 0.0, id="outside: no torque further out"),
        pytest.param(-0.3, 2.01, 0.0, -0.3, id="outside: torque back in passes"),
        pytest.param(-0.3, -2.01, 0.0, 0.0, id="outside below: no torque further out"),
        pytest.param(0.3, 0.0, 10.1, 0.0, id="too fast: no torque that speeds up"),
        pytest.param(-0.3, 0.0, 10.1, -0.3, id="too fast: braking passes"),
        pytest.param(-0.3, 0.0, -10.1, 0.0, id="too fast backwards"),
        pytest.param(0.3, 2.01, -10.1, 0.0, id="outside and too fast inwards: coast"),
    ],
)
def test_torque_is_limited(target: float, position: float, speed: float, allowed: float) -> None:
    assert one(target, position, speed, by_position=False) == pytest.approx(allowed)


@pytest.mark.parametrize(
    ("target", "position", "allowed"),
    [
        pytest.param(0.2, 0.0, 0.2, id="just at the speed limit"),
        pytest.param(0.201, 0.0, 0.2, id="just over the speed limit"),
        pytest.param(2.5, 1.95, 2.0, id="clipped to the range"),
        pytest.param(0.0, 2.3, 2.1, id="found outside: walked back at the allowed speed"),
        pytest.param(-9.0, -2.5, -2.3, id="found outside below: walked back"),
    ],
)
def test_position_is_limited(target: float, position: float, allowed: float) -> None:
    assert one(target, position, 0.0, by_position=True) == pytest.approx(allowed)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("by_position", [True, False])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_what_is_no_number_is_refused_wherever_it_stands(bad: float, by_position: bool, place: int) -> None:
    values = [0.1, 0.1, 0.1]
    values[place] = bad
    name = ("target", "measured position", "measured speed")[place]
    with pytest.raises(UnsafeCommand, match=rf"^{name} .* is not finite"):
        one(*values, by_position=by_position)


@settings(max_examples=300, derandomize=True, deadline=None)
@given(
    target=st.floats(width=32, allow_nan=False, allow_infinity=False),
    position=st.floats(-100, 100, width=32),
    speed=st.floats(-100, 100, width=32),
)
def test_no_finite_input_passes_more_than_the_torque_limit(target: float, position: float, speed: float) -> None:
    assert abs(one(target, position, speed, by_position=False)) <= 0.5


def test_limits_are_those_of_the_description() -> None:
    found = joint_limits(load_robot("furuta"))
    arm = load_robot("furuta").actuated[0]
    assert (found.lower[0], found.upper[0]) == arm.position
    assert found.torque[0] == np.float32(arm.torque)
    assert not found.by_position[0]
