"""The fused step of single precision against Adam in float64, and what it shares with hAdam."""

import numpy as np
import pytest
import torch

from edge_sac.adam import Adam
from edge_sac.coefficients import Coefficients
from edge_sac.loss_scale import LossScale

CPU = torch.device("cpu")


def made(length: int, **settings) -> tuple[Adam, Coefficients]:
    coefficients = Coefficients((1e-3,), LossScale(CPU, enabled=False))
    theta = torch.tensor(np.random.default_rng(0).normal(size=length), dtype=torch.float32)
    return Adam(theta, coefficients, 0, 1e-3, **settings), coefficients


def test_fused_step_equals_adam_in_float64_over_10000_steps_with_some_skipped():
    optim, coefficients = made(33)
    rng = np.random.default_rng(1)
    theta, m, v, t = optim.theta.double().numpy(), np.zeros(33), np.zeros(33), 0
    for step in range(10_000):
        g = rng.normal(0, 1e-2, 33)
        coefficients.begin()
        optim.grad.copy_(torch.from_numpy(g))
        g = optim.grad.double().numpy()
        if step % 100 == 50:
            optim.grad[7] = (float("nan"), float("inf"))[step % 200 == 50]
        else:
            t += 1
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
            theta -= 1e-3 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        optim.step()
        coefficients.end()
    assert int(optim.count) == t == 9_900
    assert int(coefficients.loss_scale.skipped) == 100
    # 10,000 fp32 roundings of theta add up like a random walk; each step is right to 1e-6 of 1e-3.
    assert np.abs(optim.theta.double().numpy() - theta).max() < 3e-5


def test_step_in_parts_equals_the_step_as_a_whole():
    whole, shared = made(40)
    parts, _ = made(40, whole_gradient=False)
    assert parts.grad is None
    for step in range(20):
        g = torch.tensor(np.random.default_rng(step).normal(size=40), dtype=torch.float32)
        shared.begin()
        whole.grad.copy_(g)
        whole.step()
        parts.begin()
        for span in (slice(24, 40), slice(0, 24)):
            parts.advance(span, g[span].clone())
    # The fused kernel works through registers of several values, whose last bits depend on where a part begins.
    assert torch.allclose(whole.theta, parts.theta, rtol=0, atol=1e-7)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_part_that_is_not_finite_is_skipped_alone(bad):
    optim, coefficients = made(16, whole_gradient=False)
    start = optim.theta.clone()
    coefficients.begin()
    optim.begin()
    optim.advance(slice(0, 8), torch.full((8,), bad))
    optim.advance(slice(8, 16), torch.ones(8))
    coefficients.end()
    assert torch.equal(optim.theta[:8], start[:8])
    assert torch.allclose(optim.theta[8:], start[8:] - 1e-3, atol=1e-6)
    assert int(coefficients.loss_scale.skipped) == 1
