"""The policy's distribution: a normal variable squashed by tanh, with its log-probability, safe in half precision.

Every operation is elementwise in the dtype of its arguments, as in the paper (arXiv 2102.13565): nothing is widened
in secret, so that what the two fixes are worth can be seen by switching them off. The log-probability is taken at
the pre-tanh value that was drawn; no inverse of tanh appears anywhere.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

LOG_STD_MIN = -5.0
LOG_STD_MAX = 2.0
SOFTPLUS_LINEAR = 10.0
"""Above it softplus(z) is z: the error there is 4.5e-5, the fp16 spacing 7.8e-3."""
SOFTPLUS_LINEAR_STOCK = 20.0
"""PyTorch's own switch, past fp16's overflow of exp at 11.09."""


def log_std(raw: Tensor) -> Tensor:
    """Return the log standard deviation in [-5, 2] for the network's raw output of any shape."""
    return LOG_STD_MIN + 0.5 * (LOG_STD_MAX - LOG_STD_MIN) * (torch.tanh(raw) + 1)


def softplus(z: Tensor, linear_above: float = SOFTPLUS_LINEAR) -> Tensor:
    """Return log(1 + exp(z)) elementwise, in explicit operations of z's own dtype.

    The argument of exp is clamped so that the branch not taken stays finite: inf there would turn the gradient
    into 0 * inf.
    """
    return torch.where(z > linear_above, z, torch.log1p(torch.exp(z.clamp(max=linear_above))))


def log_tanh_derivative(u: Tensor, linear_above: float = SOFTPLUS_LINEAR) -> Tensor:
    """Return log(1 - tanh(u)^2) as 2 (log 2 - u - softplus(-2 u))."""
    return 2 * (math.log(2) - u - softplus(-2 * u, linear_above))


def normal_log_prob(u: Tensor, mean: Tensor, std: Tensor, divide_first: bool = True) -> Tensor:
    """Return log N(u; mean, std) elementwise.

    `divide_first` is the normal-fix: ((u - mean) / std)^2 never forms std^2, which is subnormal in fp16 at
    std = e^-5. Without it the quotient is written with the square in the denominator.
    """
    half_energy = 0.5 * ((u - mean) / std).square() if divide_first else (u - mean).square() / (2 * std * std)
    return -half_energy - std.log() - 0.5 * math.log(2 * math.pi)


def sample(
    mean: Tensor,  # [B, A]
    std: Tensor,  # [B, A]
    noise: Tensor,  # [B, A], standard normal
    *,
    normal_fix: bool = True,
    softplus_fix: bool = True,
) -> tuple[Tensor, Tensor]:
    """Return the action tanh(mean + std * noise) [B, A] and its log-probability [B], summed in fp32."""
    u = mean + std * noise
    linear_above = SOFTPLUS_LINEAR if softplus_fix else SOFTPLUS_LINEAR_STOCK
    per_channel = normal_log_prob(u, mean, std, normal_fix) - log_tanh_derivative(u, linear_above)
    return torch.tanh(u), per_channel.sum(dim=-1, dtype=torch.float32 if u.dtype != torch.float64 else u.dtype)
