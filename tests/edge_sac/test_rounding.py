"""Three ways to store a small step, over long horizons against float64."""

import numpy as np
import pytest
import torch

from edge_sac.rounding import Compensated, Nearest, step_storage

YES, NO = torch.tensor(True), torch.tensor(False)


def walk(kind: str, steps: int, dtype=torch.float16) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return theta, its float64 twin and where both began, after steps a thirtieth of theta's spacing and noise."""
    rng = np.random.default_rng(0)
    theta = torch.tensor(rng.uniform(0.3, 1.9, 256), dtype=dtype)
    start = theta.double().numpy().copy()
    exact = start.copy()
    storage = step_storage(kind, theta, 256)  # type: ignore[arg-type]
    for _ in range(steps):
        step = torch.tensor(rng.normal(2e-5, 2e-5, 256), dtype=torch.float32)
        exact += step.double().numpy()
        before = theta.float()
        change = torch.empty(256)
        storage.begin()
        storage.enable(YES)
        storage.add(slice(0, 256), theta, step, torch.empty(256), change)
        assert torch.equal(change, theta.float() - before)
    return theta.double().numpy(), exact, start


def test_compensated_steps_arrive_to_half_a_spacing_after_20000_of_them():
    theta, exact, start = walk("kahan", 20_000)
    assert (exact - start).min() > 0.3
    # Half an fp16 spacing below 4, and what the compensation itself rounds away.
    assert np.abs(theta - exact).max() <= 2**-10 + 1e-4


def test_dithered_steps_wander_less_than_random_rounding_would_and_about_the_right_value():
    theta, exact, _ = walk("stochastic", 20_000)
    # Random rounding of n steps d at spacing s wanders by sqrt(n s |d|), here 0.023.
    wander = np.sqrt(np.mean((theta - exact) ** 2))
    assert wander <= np.sqrt(20_000 * 2**-10 * 2.8e-5)
    assert abs((theta - exact).mean()) <= 4 * wander / np.sqrt(256)


def test_small_steps_are_lost_to_rounding_to_nearest():
    theta, exact, start = walk("nearest", 2_000)
    assert np.abs(theta - start).max() < 0.1 * (exact - start).min()


def test_dither_of_bfloat16_steps_arrives_as_well():
    theta, exact, _ = walk("stochastic", 5_000, torch.bfloat16)
    wander = np.sqrt(np.mean((theta - exact) ** 2))
    assert wander <= np.sqrt(5_000 * 2**-7 * 2.8e-5)
    assert abs((theta - exact).mean()) <= 4 * wander / np.sqrt(256)


@pytest.mark.parametrize("kind", ["kahan", "stochastic", "nearest"])
def test_skipped_step_moves_nothing(kind):
    theta = torch.tensor([1.0, 0.5, 1.5, 2.0**-14, 0.0, -2.0], dtype=torch.float16)
    before = theta.clone()
    storage = step_storage(kind, theta, 6)  # type: ignore[arg-type]
    for _ in range(500):
        storage.begin()
        storage.enable(NO)
        storage.add(slice(0, 6), theta, torch.zeros(6), torch.empty(6), torch.empty(6))
        assert torch.equal(theta, before)


@pytest.mark.parametrize("edge", [0.5, 1.0, -1.0])
def test_steps_of_a_thousandth_of_a_spacing_pass_a_power_of_two_in_both_directions(edge):
    """Above it the spacing is twice as wide as below: a dither of either width would hold theta back there."""
    for direction in (1.0, -1.0):
        theta = torch.full((256,), edge - direction * 2.0**-9 * abs(edge), dtype=torch.float16)
        storage = step_storage("stochastic", theta, 256)
        exact = theta.double().clone()
        step = torch.full((256,), direction * 2.0**-20 * abs(edge))
        for _ in range(4_096):
            storage.begin()
            storage.enable(YES)
            storage.add(slice(0, 256), theta, step.clone(), torch.empty(256), torch.empty(256))
            exact += step.double()
        # From two spacings before the edge to two behind it.
        assert (exact - edge).abs().mean() == pytest.approx(2.0**-9 * abs(edge))
        assert abs(float((theta.double() - exact).mean())) <= 2.0**-11 * abs(edge)
        assert (theta.double() - exact).abs().max() <= 3 * 2.0**-10 * abs(edge)


def test_only_compensation_takes_memory_and_fp32_needs_no_dither():
    half = torch.zeros(1_000, dtype=torch.float16)
    sizes = {kind: sum(v.nbytes for v in step_storage(kind, half, 10).state().values() if v.ndim) for kind in KINDS}
    assert sizes == {"kahan": 2_000, "stochastic": 0, "nearest": 0}
    assert isinstance(step_storage("stochastic", torch.zeros(8), 8), Nearest)
    assert isinstance(step_storage("kahan", torch.zeros(8), 8), Compensated)


KINDS = ("kahan", "stochastic", "nearest")
