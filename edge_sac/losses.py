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
    discount: Tensor,  # [B], of what comes after; 0: terminated, while a truncated step still bootstraps
    next_q: Tensor,  # [2, B], from the target critics
    next_log_prob: Tensor,  # [B]
    alpha: Tensor,  # []
) -> Tensor:
    """Return the soft Bellman target, shape [B], in fp32; what comes after an end is not looked at, were it a NaN."""
    next_v = next_q.float().amin(dim=0) - alpha * next_log_prob
    return torch.where(discount > 0, reward + discount * next_v, reward)


def critic_gradient(error: Tensor, weight: Tensor) -> Tensor:
    """Return the derivative by q [2, B] of `critic_loss`, given the errors q - target [2, B].

    Each transition's `weight` [B] makes up for how often it is drawn (arXiv 1511.05952); 1 where draws are uniform.
    """
    return error * (weight * (2 / error.shape[-1]))


def critic_loss(error: Tensor) -> Tensor:
    """Return the mean squared error summed over both critics, []."""
    return error.square().mean(dim=-1).sum()


def actor_gradient(q: Tensor) -> Tensor:
    """Return the derivative by `q` [2, B] of `actor_loss`, in fp32.

    A q that is not finite has no derivative: it is NaN there (q - q), so that the step is skipped instead of being
    taken along the entropy alone.
    """
    first = q[0] <= q[1]
    return torch.stack((first, ~first)).float().div_(-q.shape[-1]).add_(q - q)


def actor_loss(q: Tensor, log_prob: Tensor, alpha: Tensor) -> Tensor:
    """Return mean(alpha log_prob - min q) over the batch, []; its derivative by each log_prob is alpha / B."""
    return (alpha * log_prob - q.float().amin(dim=0)).mean()


def alpha_loss(log_prob: Tensor, alpha: Tensor, target_entropy: float) -> Tensor:
    """Return alpha * mean(-log_prob - target_entropy), []; its derivative by log alpha equals it."""
    return log_prob.mean().neg_().sub_(target_entropy).mul_(alpha)
