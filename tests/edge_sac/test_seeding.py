"""One seed gives every stream its own numbers, and a stream goes on where it was."""

from __future__ import annotations

import json

import numpy as np
import pytest

from edge_sac.seeding import CALIBRATION, JUDGEMENT, SELECTION, TRAINING, episode_seed, generators, restore

PURPOSES = (TRAINING, SELECTION, JUDGEMENT, CALIBRATION)


def test_episode_seeds_differ_between_seeds_purposes_and_episodes() -> None:
    found = [episode_seed(seed, purpose, i) for seed in (0, 1) for purpose in PURPOSES for i in range(100)]
    # 800 draws from 2^31: two equal ones would be a 1 in 6,700 accident, and these are fixed.
    assert len(set(found)) == len(found)


@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
def test_episode_seed_is_the_same_every_time_and_fits_what_gymnasium_takes(seed: int) -> None:
    found = [episode_seed(seed, TRAINING, i) for i in range(200)]
    assert found == [episode_seed(seed, TRAINING, i) for i in range(200)]
    assert all(0 <= value < 2**31 for value in found)


def test_generators_are_independent_of_each_other_and_of_how_many_there_are() -> None:
    three = [rng.integers(0, 2**62, 4).tolist() for rng in generators(7, 3)]
    two = [rng.integers(0, 2**62, 4).tolist() for rng in generators(7, 2)]
    assert three[:2] == two
    assert len({tuple(numbers) for numbers in three}) == 3
    assert three[0] != generators(8, 1)[0].integers(0, 2**62, 4).tolist()


def test_restored_generator_goes_on_where_the_saved_one_was_through_json() -> None:
    (rng,) = generators(3, 1)
    rng.standard_normal(5, dtype=np.float32)  # an odd number of 32-bit draws leaves half a word buffered
    rng.integers(0, 10, dtype=np.uint32)
    saved = json.loads(json.dumps(rng.bit_generator.state))
    expected = [rng.standard_normal(3, dtype=np.float32), rng.integers(0, 99, 3, dtype=np.uint32)]
    (other,) = generators(4, 1)
    restore(other, saved)
    for values in expected:
        drawn = other.standard_normal(3, dtype=np.float32) if values.dtype == np.float32 else None
        again = other.integers(0, 99, 3, dtype=np.uint32) if drawn is None else drawn
        np.testing.assert_array_equal(again, values)
