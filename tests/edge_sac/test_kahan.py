"""Kahan-compensated steps in fp16 against float64, over long horizons."""

import math

import numpy as np
import torch

from edge_sac.kahan import kahan_add


def add(stored: torch.Tensor, compensation: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
    before, change = stored.float(), torch.empty_like(step)
    kahan_add(stored, compensation, step, torch.empty_like(step), change)
    assert torch.equal(change, stored.float() - before)
    return change


def test_log_alpha_follows_steps_twenty_times_smaller_than_its_spacing():
    log_alpha = torch.tensor([math.log(0.1)], dtype=torch.float16)
    plain, compensation = log_alpha.clone(), torch.zeros_like(log_alpha)
    for _ in range(1_000):
        add(log_alpha, compensation, torch.tensor([-1e-4]))
        plain += -1e-4
    assert float(plain) == np.float16(math.log(0.1))
    # Within half an fp16 spacing, 2^-10, of the exact log(0.1) - 0.1.
    assert abs(float(log_alpha) - (math.log(0.1) - 0.1)) <= 2**-10 + 1e-3


def test_compensated_sum_of_20000_random_steps_stays_within_a_spacing_of_float64():
    rng = np.random.default_rng(0)
    stored = torch.tensor(rng.uniform(-2, 2, 64), dtype=torch.float16)
    compensation = torch.zeros_like(stored)
    exact = stored.double().numpy()
    start = exact.copy()
    for _ in range(20_000):
        step = torch.tensor(rng.normal(2e-5, 1e-4, 64), dtype=torch.float32)
        exact += step.double().numpy()
        add(stored, compensation, step)
    assert np.abs(exact - start).min() > 0.3
    # theta - c carries about 21 bits: what is left is half a spacing of theta (2^-10 below 4) and c's rounding.
    assert np.abs(stored.double().numpy() - exact).max() <= 2**-10 + 1e-4
    assert np.abs(stored.double().numpy() - compensation.double().numpy() - exact).max() <= 2e-4


def test_compensation_is_not_zero_so_no_compiler_has_simplified_it_away():
    stored, compensation = torch.ones(8, dtype=torch.float16), torch.zeros(8, dtype=torch.float16)
    add(stored, compensation, torch.full((8,), 1e-4))
    assert torch.equal(stored, torch.ones(8, dtype=torch.float16))
    assert torch.allclose(compensation.float(), torch.full((8,), -1e-4), rtol=1e-3)


def test_step_of_zero_leaves_the_compensated_value_alone_to_the_last_bit():
    stored = torch.tensor([1.0, 2.0, 1024.0, 1.5], dtype=torch.float16)
    # Ties and binade edges, where adding the compensation alone may round to the neighbour.
    compensation = torch.tensor([2**-11, -(2**-10), 0.25, 2**-12], dtype=torch.float16)
    before = stored.double() - compensation.double()
    for _ in range(3):
        add(stored, compensation, torch.zeros(4))
        assert torch.equal(stored.double() - compensation.double(), before)
