"""The squashed normal in fp16 against float64, where the paper's two fixes of it matter."""

import math

import numpy as np
import pytest
import torch

from edge_sac.squashed_gaussian import (
    SOFTPLUS_LINEAR_STOCK,
    ClosedForm,
    StepByStep,
    log_std,
    log_tanh_derivative,
    normal_log_prob,
    sample,
    softplus,
)

HALF_UNIT = 2.0**-11


def softplus64(z: np.ndarray) -> np.ndarray:
    return np.logaddexp(0.0, z)


def test_softplus_is_within_one_fp16_spacing_of_float64_everywhere():
    z = torch.arange(-2000, 2001, dtype=torch.float16) / 50
    exact = softplus64(z.double().numpy())
    error = np.abs(softplus(z).double().numpy() - exact)
    # exp, log1p and the result are each rounded: 1.5 spacings of the largest of them, which is 1 + e^z below 10.
    assert np.all(error <= 3 * HALF_UNIT * np.maximum(exact, 1.0))


def test_softplus_without_the_fix_overflows_in_fp16_between_11_09_and_20():
    z = torch.tensor([10.0, 11.0, 12.0, 19.0, 21.0], dtype=torch.float16)
    assert torch.isinf(softplus(z, SOFTPLUS_LINEAR_STOCK)).tolist() == [False, False, True, True, False]
    assert torch.isfinite(softplus(z)).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_gradient_of_softplus_is_the_logistic_function_where_the_other_branch_would_overflow(dtype):
    z = torch.tensor([-200.0, -1.0, 0.0, 9.0, 12.0, 30_000.0], dtype=dtype, requires_grad=True)
    softplus(z).sum().backward()
    expected = torch.sigmoid(z.detach().double())
    assert z.grad is not None
    # exp(9) is rounded once to fp16 before it is divided by 1 + itself.
    assert torch.allclose(z.grad.double(), expected, atol=2 * HALF_UNIT)


def test_log_derivative_of_tanh_matches_float64_far_out_in_the_tails():
    u = torch.linspace(-20, 20, 801).to(torch.float16)
    wide = u.double().numpy()
    exact = 2 * (math.log(2) - np.abs(wide) - np.log1p(np.exp(-2 * np.abs(wide))))
    error = np.abs(log_tanh_derivative(u).double().numpy() - exact)
    # The largest intermediate, softplus(-2 u), is up to 40: its spacing there is 2^-5.
    assert error.max() <= 4 * 2.0**-5


@pytest.mark.parametrize("upstream", [1.0, 5.0, 6.0, 100.0])
def test_gradient_of_normal_log_prob_stays_finite_at_the_smallest_deviation(upstream):
    mean, std = _smallest_deviation()
    normal_log_prob((mean + 0.5 * std).detach(), mean, std).backward(torch.tensor(upstream, dtype=mean.dtype))
    assert mean.grad is not None
    expected = upstream * 0.5 / math.exp(-5)
    # u = mean + 0.5 std is rounded to a spacing of 4.9e-4, a seventh of 0.5 std; the gradient is proportional.
    assert float(mean.grad) == pytest.approx(expected, rel=0.16)


def test_gradient_of_normal_log_prob_without_the_fix_overflows_once_upstream_passes_5():
    gradients = []
    for upstream in (5.0, 6.0):
        mean, std = _smallest_deviation()
        log_prob = normal_log_prob((mean + 0.5 * std).detach(), mean, std, divide_first=False)
        log_prob.backward(torch.tensor(upstream, dtype=mean.dtype))
        assert mean.grad is not None
        gradients.append(float(mean.grad))
    assert math.isfinite(gradients[0])
    assert math.isinf(gradients[1])


def _smallest_deviation() -> tuple[torch.Tensor, torch.Tensor]:
    mean = torch.tensor(0.5, dtype=torch.float16, requires_grad=True)
    std = torch.tensor(math.exp(-5), dtype=torch.float16, requires_grad=True)
    return mean, std


@pytest.mark.parametrize("mean", [-20.0, -3.0, 0.0, 0.7, 20.0])
@pytest.mark.parametrize("log_deviation", [-5.0, -2.0, 0.0, 2.0])
def test_log_prob_of_a_sample_matches_float64_at_the_value_that_was_drawn(mean, log_deviation):
    noise = torch.linspace(-3, 3, 25).to(torch.float16)[:, None]
    means = torch.full_like(noise, mean)
    stds = torch.full_like(noise, math.exp(log_deviation))
    action, log_prob = sample(means, stds, noise)
    u = (means + stds * noise).double().numpy()
    std = float(stds[0].double())
    energy = ((u - float(means[0].double())) / std) ** 2 / 2
    normal = -energy - math.log(std) - math.log(2 * math.pi) / 2
    squash = 2 * (math.log(2) - np.abs(u) - np.log1p(np.exp(-2 * np.abs(u))))
    exact = (normal - squash)[:, 0]
    error = np.abs(log_prob.double().numpy() - exact)
    assert log_prob.dtype == torch.float32
    assert torch.isfinite(action).all()
    # Six roundings, each half a spacing of the largest term: the energy, softplus(-2 u) <= 4 |u| + 1, or 8.
    # Where std = e^-5, u sits on fp16's grid, coarse beside it, and u - mean is exact.
    largest = np.maximum(8, np.maximum(energy[:, 0], 4 * np.abs(u[:, 0]) + 1))
    assert np.all(error <= 6 * HALF_UNIT * largest)


def test_log_std_covers_minus_5_to_2():
    raw = torch.tensor([-100.0, 0.0, 100.0])
    assert log_std(raw).tolist() == [-5.0, -1.5, 2.0]


def test_inverse_of_tanh_appears_nowhere_so_a_saturated_action_keeps_its_log_prob():
    mean = torch.full((1, 1), 15.0, dtype=torch.float16)
    action, log_prob = sample(mean, torch.ones_like(mean), torch.zeros_like(mean))
    assert float(action) == 1.0
    exact = -math.log(2 * math.pi) / 2 - 2 * (math.log(2) - 15 - math.log1p(math.exp(-30)))
    assert float(log_prob) == pytest.approx(exact, rel=4 * HALF_UNIT)


def head(dtype: torch.dtype, spread: float = 1.5) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(4)
    output = spread * torch.randn(2, 64, 6, generator=generator)
    noise, grad_action = (torch.randn(shape, generator=generator) for shape in ((2, 64, 3), (64, 3)))
    return output.to(dtype), noise.to(dtype), grad_action.to(dtype)


@pytest.mark.parametrize("spread", [0.1, 1.5, 8.0])
def test_closed_form_equals_autograd_of_the_steps_in_float64(spread):
    output, noise, grad_action = head(torch.float64, spread)
    grad_log_prob = torch.tensor(0.37, dtype=torch.float64)
    closed = ClosedForm(output, noise)
    steps = StepByStep(output, noise, normal_fix=True, softplus_fix=False)
    assert torch.allclose(closed.action, steps.action, rtol=0, atol=1e-15)
    # The linear branch from 10 on leaves out exp(-10), 4.5e-5 a channel.
    assert torch.allclose(closed.log_prob, steps.log_prob, rtol=0, atol=3 * 2 * 4.6e-5)
    for which in (0, 1):
        steps = StepByStep(output, noise, normal_fix=True, softplus_fix=False)
        ours, theirs = (form.gradient(which, grad_action, grad_log_prob) for form in (closed, steps))
        assert torch.allclose(ours, theirs, rtol=1e-9, atol=2 * 0.37 * 4.6e-5)


def test_closed_form_in_fp16_stays_close_to_float64_and_finite_at_the_edges():
    output, noise, grad_action = head(torch.float16, 4.0)
    output[0, :2] = torch.tensor([20.0, -20.0, 0.0, -60_000.0, 60_000.0, 0.0])
    exact = ClosedForm(output.double(), noise.double())
    ours = ClosedForm(output, noise)
    # u rounded in fp16 is up to two deviations off at std = e^-5: no worse than the same formula step by step.
    assert torch.isfinite(ours.log_prob).all()
    steps = StepByStep(output, noise, normal_fix=True, softplus_fix=True)
    errors = [(form.log_prob.double() - exact.log_prob).abs().mean() for form in (ours, steps)]
    assert errors[0] <= 1.2 * errors[1]
    seed = torch.tensor(1.5)
    for which in (0, 1):
        gradient = ours.gradient(which, grad_action, seed).double()
        wanted = exact.gradient(which, grad_action.double(), seed.double())
        assert torch.isfinite(gradient).all()
        # Factors of a few fp16 roundings each; u itself is rounded to 2^-6 where it is large.
        assert (gradient - wanted).norm() <= 0.02 * wanted.norm()


def test_closed_form_in_fp16_equals_the_steps_with_both_fixes_to_a_few_spacings():
    output, noise, grad_action = head(torch.float16)
    closed, steps = ClosedForm(output, noise), StepByStep(output, noise, normal_fix=True, softplus_fix=True)
    assert torch.equal(closed.action, steps.action)
    # Channels of up to 16 in four roundings each, whose spacing is 2^-7.
    assert (closed.log_prob - steps.log_prob).abs().max() <= 3 * 4 * 2.0**-7
    seed = torch.tensor(0.5)
    ours, theirs = (form.gradient(1, grad_action, seed).float() for form in (closed, steps))
    assert (ours - theirs).norm() <= 0.01 * theirs.norm()
