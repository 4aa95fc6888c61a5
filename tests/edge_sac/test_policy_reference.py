from __future__ import annotations

import math

import numpy as np
import pytest

from edge_sac.policy_reference import UNIT_ROUNDOFF, action_tolerance, reference_action


def small_weights():
    """Two observations, two hidden units, one action; every number chosen so the sums can be done by hand."""
    return {
        name: np.array(value, np.float32)
        for name, value in {
            "obs_mean": [1.0, -2.0],
            "obs_scale": [2.0, 4.0],
            "w0": [[1.0, -1.0], [0.5, 1.0]],
            "b0": [0.25, -0.5],
            "w1": [[0.5, 1.0], [2.0, -1.0]],
            "b1": [-0.125, 0.25],
            "action_scale": [3.0],
            "action_offset": [10.0],
        }.items()
    }


def test_the_deterministic_action_equals_the_one_worked_by_hand():
    # obs (3, 2) is normalised to (1, 1); the hidden sums are 1.75 and -0.5, after ReLU 1.75 and 0;
    # the mean is 1.75 * 0.5 - 0.125 = 0.75.
    action = reference_action(small_weights(), np.array([[3.0, 2.0]]), np.zeros((1, 1)))
    assert action[0, 0] == pytest.approx(10.0 + 3.0 * math.tanh(0.75), rel=1e-15)  # float64 rounding


def test_noise_is_scaled_by_the_standard_deviation_worked_by_hand():
    # The raw log standard deviation is 1.75 * 1 + 0.25 = 2.
    std = math.exp(-5.0 + 3.5 * (math.tanh(2.0) + 1.0))
    action = reference_action(small_weights(), np.array([[3.0, 2.0]]), np.array([[-0.5]]))
    expected = 10.0 + 3.0 * math.tanh(0.75 - 0.5 * std)
    assert action[0, 0] == pytest.approx(expected, rel=1e-15)  # float64 rounding


@pytest.mark.parametrize(("raw", "log_std"), [(-1e3, -5.0), (1e3, 2.0), (0.0, -1.5)])
def test_log_std_is_bounded_between_minus_five_and_two(raw, log_std):
    weights = {**small_weights(), "w1": np.zeros((2, 2), np.float32), "b1": np.array([0.0, raw], np.float32)}
    action = reference_action(weights, np.zeros((1, 2)), np.array([[0.01]]))
    expected = 10.0 + 3.0 * math.tanh(0.01 * math.exp(log_std))
    assert action[0, 0] == pytest.approx(expected, rel=1e-15)  # float64 rounding


def test_the_tolerance_equals_the_bound_worked_by_hand():
    # |x| = (1, 1): hidden bounds 1 + 0.5 + 0.25 and 1 + 1 + 0.5, mean bound 1.75 * 0.5 + 2.5 * 2 + 0.125 = 6,
    # raw bound 1.75 + 2.5 + 0.25 = 4.5; fan-in 2 + 2.
    factor = 8.0 + math.sqrt(4.0)
    quiet = action_tolerance(small_weights(), np.array([[3.0, 2.0]]), np.zeros((1, 1)))
    assert quiet[0, 0] == pytest.approx(factor * UNIT_ROUNDOFF * (6.0 * 3.0 + 10.0), rel=1e-14)
    deviation = 0.5 * math.exp(-5.0 + 3.5 * (math.tanh(2.0) + 1.0))
    bound = 6.0 + deviation * (6.0 + 3.5 * 4.5)
    noisy = action_tolerance(small_weights(), np.array([[3.0, 2.0]]), np.array([[-0.5]]))
    assert noisy[0, 0] == pytest.approx(factor * UNIT_ROUNDOFF * (bound * 3.0 + 10.0), rel=1e-14)


def test_a_batch_equals_its_rows(policy_case):
    obs, noise = policy_case.observations, policy_case.noise
    whole = reference_action(policy_case.weights, obs, noise)
    rows = [reference_action(policy_case.weights, obs[i : i + 1], noise[i : i + 1])[0] for i in range(len(obs))]
    # float64 matmul may sum a batch in another order than one row.
    np.testing.assert_allclose(whole, rows, rtol=1e-13, atol=1e-15)
