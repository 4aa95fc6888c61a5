"""Only what fp16 cannot resolve is moved, and what is moved still fits when it moves further than it was seen to."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_sac.normalizer import STEPS_NEEDED, Normalizer, identity, resolving


def column(*values: float) -> NDArray[np.float64]:
    return np.array(values, dtype=np.float64)[:, None]


def test_identity_changes_no_bit() -> None:
    obs = np.array([-0.0, 1e-30, 65504.0, 3e38], np.float32)
    assert identity(4)(obs).tobytes() == (obs - np.float32(0)).tobytes()


def test_normaliser_is_subtraction_then_division_in_float32() -> None:
    normalizer = Normalizer(np.array([1000.5, 0.0], np.float32), np.array([0.5, 8.0], np.float32))
    result = normalizer(np.array([1001.0, -4.0], np.float32))
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, [1.0, -0.5])


@pytest.mark.parametrize(
    "values",
    [
        pytest.param((-1.0, 1.0), id="around zero"),
        pytest.param((-60000.0, 60000.0), id="large and wide"),
        pytest.param((1000.0, 1000.0), id="constant"),
        pytest.param((0.0, 0.0), id="zero"),
        # At 1000 fp16 steps by 0.5: eight steps are 4.
        pytest.param((1000.0, 1004.0), id="exactly as many steps as needed"),
    ],
)
def test_channel_that_fp16_resolves_or_that_never_moved_stays_as_it_is(values: tuple[float, float]) -> None:
    found = resolving(column(*values))
    assert (found.mean[0], found.scale[0]) == (0.0, 1.0)


@pytest.mark.parametrize("values", [(1000.0, 1003.9), (-1003.9, -1000.0), (1000.0, 1001.0), (40000.0, 40010.0)])
def test_channel_with_too_few_fp16_steps_is_centred_and_spread(values: tuple[float, float]) -> None:
    found = resolving(column(*values))
    ends = found(np.array(values, np.float32)[:, None])[:, 0].astype(np.float16)
    np.testing.assert_array_equal(np.sign(ends), [-1, 1])
    steps = (ends[1] - ends[0]) / np.spacing(np.float16(np.abs(ends).max()))
    assert steps >= STEPS_NEEDED


def test_channels_are_judged_one_by_one() -> None:
    found = resolving(np.array([[0.0, 1000.0], [1.0, 1001.0]]))
    np.testing.assert_array_equal(found.mean, [0.0, 1000.5])
    np.testing.assert_array_equal(found.scale, [1.0, 0.5])


@pytest.mark.parametrize(
    ("seen", "later"),
    [
        pytest.param((0.0, 1e-12), 1.0, id="numerical noise around zero"),
        pytest.param((0.0, 5e-324), 1.0, id="a spread float32 cannot hold"),
        pytest.param((500.0, 500.0001), 0.0, id="nearly still at a large value"),
        pytest.param((60000.0, 60000.001), 0.0, id="nearly still at the end of the range"),
    ],
)
def test_channel_that_hardly_moved_still_fits_fp16_when_it_moves_later(seen: tuple[float, float], later: float) -> None:
    found = resolving(column(*seen))
    assert found.scale[0] > 0
    assert np.isfinite(found(np.array([later], np.float32)).astype(np.float16)).all()
