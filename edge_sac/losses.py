"""The three losses of Soft Actor-Critic and the targets they need, in fp32, with the seeds of their backward passes.

All are over the batch, so fp32 costs nothing here, and 0.99 stays 0.99 (in fp16 it is 0.990234, a horizon of 102.4
instead of 100). A seed is the loss's derivative by the network's output, times the loss scale; it is formed in fp32
and rounded once, so the scaled loss itself never exists and cannot overflow.
"""

from __future__ import annotations

import torch
from torch import Tensor


def soft_target(
    reward: Tensor,  # [B]
    terminated: Tensor,  # [B], bool: a truncated step still bootstraps
    next_q: Tensor,  # [2, B], from the target critics
    next_log_prob: Tensor,  # [B]
    alpha: Tensor,  # []
    gamma: float,
) -> Tensor:
    """Return the soft Bellman target, shape [B], in fp32."""
    next_v = next_q.float().amin(dim=0) - alpha * next_log_prob
    return torch.where(terminated, reward, reward + gamma * next_v)


def critic_loss(q: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean squared error summed over both critics, and its derivative by `q` [2, B]."""
    error = q.float() - target
    return error.square().mean(dim=-1).sum(), error * (2 / q.shape[-1])


def actor_loss(q: Tensor, log_prob: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean(alpha log_prob - min q), its derivative by `q` [2, B] and by `log_prob` [B].

    A q that is not finite has no derivative: it is NaN there, so that the step is skipped instead of being taken
    along the entropy alone.
    """
    batch = q.shape[-1]
    first = q[0] <= q[1]
    lower = torch.where(first, q[0], q[1]).float()
    grad_q = torch.where(torch.isfinite(q), torch.stack((first, ~first)).float() / -batch, torch.nan)
    return (alpha * log_prob - lower).mean(), grad_q, (alpha / batch).expand_as(log_prob)


def alpha_loss(log_prob: Tensor, alpha: Tensor, target_entropy: float) -> tuple[Tensor, Tensor]:
    """Return alpha * mean(-log_prob - target_entropy) and its derivative by log alpha, which equals it; both []."""
    loss = alpha * (-log_prob - target_entropy).mean()
    return loss, loss
