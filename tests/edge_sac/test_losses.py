"""The losses on hand-computed values, and their seeds against autograd."""

import pytest
import torch

from edge_sac.losses import actor_gradient, actor_loss, alpha_loss, critic_gradient, critic_loss, soft_target


def test_soft_target_takes_the_smaller_critic_less_the_entropy_term():
    target = soft_target(
        reward=torch.tensor([1.0]),
        discount=torch.tensor([0.9]),
        next_q=torch.tensor([[10.0], [8.0]]),
        next_log_prob=torch.tensor([2.0]),
        alpha=torch.tensor(0.5),
    )
    assert float(target) == pytest.approx(1 + 0.9 * (8 - 0.5 * 2))


def test_terminated_step_does_not_bootstrap_even_from_an_infinite_value():
    target = soft_target(
        torch.tensor([1.0, 1.0]),
        torch.tensor([0.0, 0.9]),
        torch.tensor([[float("inf"), 3.0], [float("inf"), 3.0]]),
        torch.zeros(2),
        torch.tensor(0.0),
    )
    assert target.tolist() == pytest.approx([1.0, 1 + 0.9 * 3])


def test_gamma_stays_0_99_with_fp16_critics():
    q = torch.full((2, 1), 1024.0, dtype=torch.float16)
    target = soft_target(torch.zeros(1), torch.tensor([0.99]), q, torch.zeros(1), torch.tensor(0.1))
    assert target.dtype == torch.float32
    # fp16(0.99) is 0.990234: rounded there it would be 1014.0.
    assert float(target) == pytest.approx(1013.76, rel=1e-6)


def test_seeds_of_the_losses_equal_autograd():
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 64, generator=generator, requires_grad=True)
    log_prob = torch.randn(64, generator=generator, requires_grad=True)
    target, alpha = torch.randn(64, generator=generator), torch.tensor(0.3)
    error = q.detach() - target
    expected = ((q - target) ** 2).mean(dim=1).sum()
    assert float(critic_loss(error)) == pytest.approx(expected.item())
    assert torch.allclose(critic_gradient(error, torch.ones(64)), torch.autograd.grad(expected, q)[0])
    weight = torch.rand(64, generator=generator)
    weighted = (weight * (q - target) ** 2).mean(dim=1).sum()
    assert torch.allclose(critic_gradient(error, weight), torch.autograd.grad(weighted, q)[0])
    expected = (alpha * log_prob - q.amin(dim=0)).mean()
    by_q, by_log_prob = torch.autograd.grad(expected, (q, log_prob))
    assert float(actor_loss(q.detach(), log_prob.detach(), alpha)) == pytest.approx(expected.item())
    assert torch.allclose(actor_gradient(q.detach()), by_q)
    assert torch.allclose(by_log_prob, (alpha / 64).expand(64))


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_actor_has_no_derivative_by_a_value_that_is_not_finite(bad):
    q = torch.tensor([[bad, 1.0, 2.0], [0.0, bad, 1.0]])
    grad_q = actor_gradient(q)
    assert torch.equal(torch.isnan(grad_q), ~torch.isfinite(q))
    assert grad_q[:, 2].tolist() == pytest.approx([0, -1 / 3])


def test_seed_of_the_temperature_equals_autograd():
    log_prob, log_alpha = torch.tensor([1.0, 3.0]), torch.tensor(-1.0, requires_grad=True)
    expected = log_alpha.exp() * (-log_prob - (-1.5)).mean()
    grad = alpha_loss(log_prob, log_alpha.detach().exp(), -1.5)
    assert float(grad) == pytest.approx(float(torch.autograd.grad(expected, log_alpha)[0]))


def test_loss_and_seed_stay_finite_at_a_scale_that_overflows_an_fp16_loss():
    q, target = torch.full((2, 256), 9.0, dtype=torch.float16), torch.zeros(256)
    error = q - target
    loss, seed = critic_loss(error), critic_gradient(error, torch.ones(256))
    scale = 1e6
    assert torch.isinf((loss * scale).half())
    assert torch.isfinite((seed * 2 * scale / 4).half()).all()
