"""Actions to targets and back."""

import numpy as np
import pytest

from robots.action import ActionScale
from robots.errors import UnsafeCommand
from robots.fake import FAKE_ROBOT, fake_spec
from robots.robot_file import parse_robot


@pytest.mark.parametrize(("action", "target"), [(-1.0, -5.0), (0.0, 0.0), (0.5, 2.5), (1.0, 5.0), (3.0, 5.0)])
def test_action_ends_are_the_range_and_what_is_beyond_counts_as_the_end(action: float, target: float) -> None:
    assert ActionScale(fake_spec()).target(np.array([action], np.float32)).tolist() == [target]


def test_an_uneven_range_maps_both_ways() -> None:
    scale = ActionScale(parse_robot(FAKE_ROBOT.replace("[[-5.0, 5.0]]", "[[-1.0, 3.0]]").encode(), "fake"))
    assert scale.target(np.array([0.0], np.float32)).tolist() == [1.0]
    assert scale.action(np.array([3.0], np.float32)).tolist() == [1.0]
    assert scale.target(np.array([0.0], np.float32)).dtype == np.float32


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_action_that_is_no_number_is_refused(bad: float) -> None:
    with pytest.raises(UnsafeCommand, match="not finite"):
        ActionScale(fake_spec()).target(np.array([bad], np.float32))
