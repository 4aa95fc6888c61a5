"""hAdam over one flat buffer: fp32 inside, each piece of state read once and stored once, chunk by chunk.

m <- beta1 m + (1 - beta1) g;  w <- hypot(sqrt(beta2) w, sqrt(1 - beta2) g);  theta <- theta - lr_t m / (w / c + eps)
with lr_t = lr / (1 - beta1^t) and c = sqrt(1 - beta2^t). This is the textbook form, so w = sqrt(v) and eps is Adam's
own; the released code of arXiv 2102.13565 keeps a w that is 3.16 times larger. Evaluated operation by operation in
fp16 the recursion is biased (sqrt(beta2) is one spacing below 1): fp32 inside a chunk costs no state. In fp16 a
gradient leaves its trace in w down to 2^-25 / sqrt(1 - beta2) = 9.4e-7.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from edge_sac.flat import CHUNK, largest, spans
from edge_sac.kahan import kahan_add
from edge_sac.loss_scale import LossScale
from edge_sac.target import TargetState


@dataclass(frozen=True)
class _Coefficients:
    """What one step multiplies by, each [] and on the device; a skipped step has decays 1 and rate 0."""

    finite: Tensor
    decay_m: Tensor
    decay_w: Tensor
    correction: Tensor
    """1 / sqrt(1 - beta2^t), or its square where w holds v."""
    eps: Tensor
    rate: Tensor


class HAdam:
    """Parameters theta [N] with their gradient, moments and, if asked for, compensation: one flat buffer each.

    With `hypot=False` it is Adam on the same path: w holds v, a square. A `target` is told, chunk by chunk, how theta
    moved. A step whose gradient is not finite is skipped, on the device.
    """

    def __init__(
        self,
        theta: Tensor,
        loss_scale: LossScale,
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        hypot: bool = True,
        kahan: bool = True,
        target: TargetState | None = None,
    ) -> None:
        device = theta.device
        self.theta = theta
        self.loss_scale = loss_scale
        self.lr, self.betas, self.eps = lr, betas, eps
        self.hypot = hypot
        self.target = target
        self.grad = torch.zeros_like(theta)
        self.m = torch.zeros_like(theta)
        self.w = torch.zeros_like(theta)
        self.compensation = torch.zeros_like(theta) if kahan else None
        self.moment_scale = loss_scale.scale.clone()
        """The scale that m and w were stored under; they are brought to the current one when read."""
        self.powers = torch.ones(2, dtype=torch.float64, device=device)
        """beta1^t and beta2^t over the t steps that were not skipped."""
        self._betas = torch.tensor(betas, dtype=torch.float64, device=device)
        self._zero = torch.zeros((), device=device)
        self._scratch = torch.empty(4, min(CHUNK, len(theta)), device=device)

    def step(self) -> None:
        """Take one step along `grad`, which is in the loss scale's units; then move the loss scale."""
        finite = torch.isfinite(largest(self.grad))
        by = self._coefficients(finite)
        peak = self._zero
        for span in spans(len(self.theta)):
            peak = torch.maximum(peak, self._advance_moments(span, by))
            self._move(span, by)
        self.loss_scale.advance(finite, peak, torch.finfo(self.theta.dtype).max)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint must hold, the loss scale's and the target's included."""
        own = {"theta": self.theta, "m": self.m, "w": self.w}
        own |= {"moment_scale": self.moment_scale, "powers": self.powers}
        if self.compensation is not None:
            own["compensation"] = self.compensation
        own |= {f"loss_scale.{name}": value for name, value in self.loss_scale.state().items()}
        if self.target is not None:
            own |= {f"target.{name}": value for name, value in self.target.state().items()}
        return own

    def _coefficients(self, finite: Tensor) -> _Coefficients:
        beta1, beta2 = self.betas
        self.powers.mul_(torch.where(finite, self._betas, 1.0))
        unbias1, unbias2 = (1 - self.powers).clamp(min=1e-12)
        scale = self.loss_scale.scale
        rescale = scale / self.moment_scale
        self.moment_scale.copy_(scale)
        decay_w = rescale * torch.where(finite, math.sqrt(beta2), 1.0)
        return _Coefficients(
            finite=finite,
            decay_m=rescale * torch.where(finite, beta1, 1.0),
            decay_w=decay_w if self.hypot else decay_w.square(),
            correction=unbias2.rsqrt() if self.hypot else unbias2.reciprocal(),
            eps=self.eps * scale,
            rate=torch.where(finite, -self.lr / unbias1, 0.0),
        )

    def _rows(self, span: slice) -> tuple[Tensor, ...]:
        return self._scratch[:, : span.stop - span.start].unbind()

    def _advance_moments(self, span: slice, by: _Coefficients) -> Tensor:
        """Advance m and w on one chunk, leave the step in the last scratch row, return the largest moment []."""
        beta1, beta2 = self.betas
        g, m, w, step = self._rows(span)
        torch.where(by.finite, step.copy_(self.grad[span]), self._zero, out=g)
        m.copy_(self.m[span]).mul_(by.decay_m).add_(g, alpha=1 - beta1)
        w.copy_(self.w[span]).mul_(by.decay_w)
        if self.hypot:
            torch.hypot(w, g.mul_(math.sqrt(1 - beta2)), out=w)
        else:
            w.addcmul_(g, g, value=1 - beta2)
        peak = torch.maximum(largest(self.m[span].copy_(m)), largest(self.w[span].copy_(w)))
        # The step uses the moments as computed, before they were rounded into their storage.
        w.mul_(by.correction)
        torch.div(m, (w if self.hypot else w.sqrt_()).add_(by.eps), out=step).mul_(by.rate)
        return peak

    def _move(self, span: slice, by: _Coefficients) -> None:
        """Add the step to theta on one chunk and tell the target how far theta really moved."""
        theta = self.theta[span]
        before, change, _, step = self._rows(span)
        if self.compensation is None:
            before.copy_(theta)
            theta.copy_(torch.add(before, step, out=change))
            change.copy_(theta).sub_(before)
        else:
            kahan_add(theta, self.compensation[span], step, before, change, by.finite)
        if self.target is not None:
            self.target.moved(span, change)
