"""Actions in the environment's units and as stored are the same actions, and never beyond their bounds."""

from __future__ import annotations

import numpy as np
import pytest

from edge_sac.interface import Interface
from edge_sac.normalizer import identity


def interface(lower: list[float], upper: list[float]) -> Interface:
    names = [f"action[{i}]" for i in range(len(lower))]
    return Interface(["x"], names, identity(1), np.array(lower, np.float32), np.array(upper, np.float32))


def test_ends_and_middle_of_asymmetric_bounds() -> None:
    face = interface([-0.5, 1.0], [2.0, 4.0])
    np.testing.assert_array_equal(face.in_units(np.array([-1, 1], np.float32)), [-0.5, 4.0])
    np.testing.assert_array_equal(face.in_units(np.zeros(2, np.float32)), [0.75, 2.5])
    np.testing.assert_array_equal(face.stored(np.array([2.0, 1.0], np.float32)), [1, -1])


@pytest.mark.parametrize("bounds", [(-0.1, 0.3), (0.7, 0.9), (-1e-3, 1e6), (-3e38, 3e38)])
def test_no_rounding_leaves_the_bounds(bounds: tuple[float, float]) -> None:
    lower, upper = (np.float32(bound) for bound in bounds)
    face = interface([float(lower)], [float(upper)])
    assert np.isfinite(face.action_scale).all()
    for chosen in (-1.0, -0.9999999, 0.3, 0.9999999, 1.0):
        action = face.in_units(np.array([chosen], np.float32))
        assert lower <= action[0] <= upper
        assert action.dtype == np.float32
        assert -1 <= face.stored(action)[0] <= 1
