"""What an encoder tells of an angle."""

import math

import numpy as np
import pytest

from sim.sensors import Encoder

STEP = 2 * math.pi / 2048


def test_reading_is_a_whole_number_of_counts_never_above_the_angle() -> None:
    encoder = Encoder(2048)
    for angle in np.random.default_rng(0).uniform(-50, 50, 1000):
        measured = encoder.measured(angle)
        assert measured / STEP == pytest.approx(round(measured / STEP), abs=1e-6)
        # 1e-12 rad: rounding of angles up to 50 rad.
        assert -1e-12 <= angle - measured < STEP + 1e-12


@pytest.mark.parametrize(("angle", "counts"), [(0.0, 0), (0.99 * STEP, 0), (1.01 * STEP, 1), (-0.01 * STEP, -1)])
def test_a_count_changes_at_its_edge_on_both_sides_of_zero(angle: float, counts: int) -> None:
    assert Encoder(2048).measured(angle) == counts * STEP
