"""hAdam over one flat buffer: fp32 inside, each piece of state read once and stored once, chunk by chunk.

m <- beta1 m + (1 - beta1) g;  w <- hypot(sqrt(beta2) w, sqrt(1 - beta2) g);  theta <- theta - lr_t m / (w / c + eps)
with lr_t = lr / (1 - beta1^t) and c = sqrt(1 - beta2^t). This is the textbook form, so w = sqrt(v) and eps is Adam's
own; the released code of arXiv 2102.13565 keeps a w that is 3.16 times larger. Evaluated operation by operation in
fp16 the recursion is biased (sqrt(beta2) is one spacing below 1), so it is fp32 inside a chunk; rounded to nearest
when stored it is still biased for all but noisy gradients, so the moments are stored with `dither`. In fp16 a single
gradient leaves its trace in w down to 2^-25 / sqrt(1 - beta2) = 9.4e-7, and smaller ones do so on average.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from edge_sac.dither import Dither
from edge_sac.flat import chunk, largest, spans
from edge_sac.kahan import kahan_add
from edge_sac.loss_scale import LossScale
from edge_sac.target import TargetState

EPS_FLOOR = 1e-7
"""In scaled units, for half-precision moments: the released code's, about the smallest w there can be."""


@dataclass(frozen=True)
class _Coefficients:
    """What one step multiplies by, each [] and on the device; a skipped step has decays 1 and rate 0."""

    finite: Tensor
    decay: Tensor
    """Of m and of w, [2, 1], the change of the loss scale included."""
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
        self.moments = torch.zeros(2, len(theta), dtype=theta.dtype, device=device)
        self.m, self.w = self.moments
        self.compensation = torch.zeros_like(theta) if kahan else None
        self.moment_scale = loss_scale.scale.clone()
        """The scale that m and w were stored under; they are brought to the current one when read."""
        self.powers = torch.ones(2, dtype=torch.float64, device=device)
        """beta1^t and beta2^t over the t steps that were not skipped."""
        self._betas = torch.tensor(betas, dtype=torch.float64, device=device)
        self._decays = torch.tensor((betas[0], math.sqrt(betas[1]) if hypot else betas[1]), device=device)
        self._zero = torch.zeros((), device=device)
        self._scratch = torch.empty(4, chunk(len(theta), device), device=device)
        self.dither = Dither(2, chunk(len(theta), device), theta.dtype, device)
        limits = torch.finfo(theta.dtype)
        self._eps_floor = EPS_FLOOR if limits.bits == 16 else 0.0
        # Doubling the scale doubles w and quadruples a square.
        self._room = limits.max if hypot else limits.max / 2

    def step(self) -> None:
        """Take one step along `grad`, which is in the loss scale's units; then move the loss scale."""
        finite = torch.isfinite(largest(self.grad))
        by = self._coefficients(finite)
        self.dither.advance(finite)
        peak = self._zero
        for span in spans(self.theta):
            peak = torch.maximum(peak, self._advance_moments(span, by))
            self._move(span, by)
        self.loss_scale.advance(finite, peak, self._room)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint must hold, the loss scale's and the target's included."""
        own = {"theta": self.theta, "moments": self.moments}
        own |= {"moment_scale": self.moment_scale, "powers": self.powers, "dither": self.dither.phase}
        if self.compensation is not None:
            own["compensation"] = self.compensation
        own |= {f"loss_scale.{name}": value for name, value in self.loss_scale.state().items()}
        if self.target is not None:
            own |= {f"target.{name}": value for name, value in self.target.state().items()}
        return own

    def _coefficients(self, finite: Tensor) -> _Coefficients:
        self.powers.mul_(torch.where(finite, self._betas, 1.0))
        unbias1, unbias2 = (1 - self.powers).clamp(min=1e-12)
        scale = self.loss_scale.scale
        rescale = scale / self.moment_scale
        self.moment_scale.copy_(scale)
        rescales = torch.stack((rescale, rescale if self.hypot else rescale * rescale))
        correction = unbias2.rsqrt() if self.hypot else unbias2.reciprocal()
        return _Coefficients(
            finite=finite,
            decay=torch.where(finite, self._decays * rescales, rescales).unsqueeze(1),
            correction=correction.float(),
            eps=(self.eps * scale).clamp(min=self._eps_floor),
            rate=torch.where(finite, -self.lr / unbias1, 0.0).float(),
        )

    def _rows(self, span: slice) -> tuple[Tensor, ...]:
        return self._scratch[:, : span.stop - span.start].unbind()

    def _advance_moments(self, span: slice, by: _Coefficients) -> Tensor:
        """Advance m and w on one chunk, leave the step in the last scratch row, return the largest moment []."""
        beta1, beta2 = self.betas
        g, m, w, step = self._rows(span)
        torch.where(by.finite, step.copy_(self.grad[span]), self._zero, out=g)
        moments = self._scratch[1:3, : len(g)].copy_(self.moments[:, span]).mul_(by.decay)
        m.add_(g, alpha=1 - beta1)
        if self.hypot:
            torch.hypot(w, g.mul_(math.sqrt(1 - beta2)), out=w)
        else:
            w.addcmul_(g, g, value=1 - beta2)
        stored = self.dither.store(moments, self.moments[:, span])
        # The step uses the moments as computed, before they were rounded into their storage.
        w.mul_(by.correction)
        torch.div(m, (w if self.hypot else w.sqrt_()).add_(by.eps), out=step).mul_(by.rate)
        return largest(stored)

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
