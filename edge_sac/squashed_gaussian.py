"""The policy's distribution: a normal variable squashed by tanh, with its log-probability, safe in half precision.

Every operation of `sample` is elementwise in the dtype of its arguments, as in the paper (arXiv 2102.13565): nothing
is widened in secret, so that what the two fixes are worth can be seen by switching them off. The log-probability is
taken at the pre-tanh value that was drawn; no inverse of tanh appears anywhere. With both fixes on the gradient has a
closed form, which `ClosedForm` is.
"""

from __future__ import annotations

import math
from typing import Protocol

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


class Drawn(Protocol):
    """Actions with their log-probabilities, and the way back to the network's output they came from."""

    action: Tensor  # [N, B, A]
    log_prob: Tensor  # [N, B], at least fp32

    def gradient(self, which: int, grad_action: Tensor, grad_log_prob: Tensor) -> Tensor:
        """Return the gradient by output[which], [B, 2 A], from those by its action [B, A] and each log_prob []."""


class ClosedForm:
    """The same values as `sample` with both fixes on, and their gradient by its formula.

    torch's softplus with its switch at 10 is the fixed one. The normal's exponent has no derivative, since u - mean
    is std * noise whatever the output; those of -log std - log(1 - tanh(u)^2) are -1 by log std and 2 tanh(u) by u.
    """

    def __init__(self, output: Tensor, noise: Tensor) -> None:
        """Draw for `output` [N, B, 2 A] and standard normal `noise` [N, B, A]."""
        mean, raw = output.chunk(2, dim=-1)
        self._squashed_raw = torch.tanh(raw)
        log_deviation = torch.add(self._squashed_raw, 1).mul_(0.5 * (LOG_STD_MAX - LOG_STD_MIN)).add_(LOG_STD_MIN)
        std = torch.exp(log_deviation)
        self._scaled_noise = std * noise
        u = mean + self._scaled_noise
        quotient = torch.sub(u, mean).div_(std)
        per_channel = torch.nn.functional.softplus(u * -2, threshold=SOFTPLUS_LINEAR).add_(u).mul_(2)
        per_channel.sub_(log_deviation).sub_(quotient.square_(), alpha=0.5)
        constant = noise.shape[-1] * (2 * math.log(2) + 0.5 * math.log(2 * math.pi))
        self.log_prob = per_channel.sum(dim=-1, dtype=torch.promote_types(u.dtype, torch.float32)).sub_(constant)
        self.action = u.tanh_()

    def gradient(self, which: int, grad_action: Tensor, grad_log_prob: Tensor) -> Tensor:
        """Return the gradient by output[which]."""
        action = self.action[which]
        by_u = torch.ops.aten.tanh_backward(grad_action, action).add_(action * grad_log_prob, alpha=2)
        by_log_std = torch.mul(by_u, self._scaled_noise[which]).sub_(grad_log_prob)
        by_raw = torch.ops.aten.tanh_backward(by_log_std, self._squashed_raw[which])
        return torch.cat((by_u, by_raw.mul_(0.5 * (LOG_STD_MAX - LOG_STD_MIN))), dim=-1)


class StepByStep:
    """`sample` as it stands, differentiated by autograd: the form in which a fix can be missed."""

    def __init__(self, output: Tensor, noise: Tensor, *, normal_fix: bool, softplus_fix: bool) -> None:
        """Draw for `output` [N, B, 2 A] and standard normal `noise` [N, B, A]."""
        with torch.enable_grad():
            self._output = output.detach().requires_grad_()
            mean, raw = self._output.chunk(2, dim=-1)
            std = log_std(raw).exp()
            self._drawn = sample(mean, std, noise, normal_fix=normal_fix, softplus_fix=softplus_fix)
        self.action, self.log_prob = (value.detach() for value in self._drawn)

    def gradient(self, which: int, grad_action: Tensor, grad_log_prob: Tensor) -> Tensor:
        """Return the gradient by output[which]."""
        with torch.enable_grad():
            action, log_prob = (value[which] for value in self._drawn)
        seeds = (grad_action, grad_log_prob.expand_as(log_prob))
        (found,) = torch.autograd.grad((action, log_prob), self._output, seeds)
        return found[which]
