"""The numbers that an update's optimiser steps multiply by, for all its optimisers at once, on the device.

A step on 200,000 parameters takes some 20 operations, and so would its dozen of scalars; computed for critics, actor
and temperature together they cost a third.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from edge_sac.loss_scale import LossScale


@dataclass(frozen=True)
class Row:
    """One optimiser's coefficients; all are views, [] unless said, and change with each step."""

    scale: Tensor
    """Of its loss."""
    taken: Tensor
    """[3]: what m and w are multiplied by, and the rate that m / (w / c + eps) is."""
    skipped: Tensor
    """[3]: the same for a step that is skipped: m and w follow the loss scale, the rate is 0."""
    correction: Tensor
    """1 / sqrt(1 - beta2^t), or its square where w holds v."""
    eps: Tensor
    finite: Tensor
    """Whether no part of the step was skipped; the optimiser sets it."""
    peak: Tensor
    """The largest moment stored, in scaled units; the optimiser raises it."""


class Coefficients:
    """One row for each optimiser, between `begin` and `end` of an update."""

    def __init__(
        self,
        rates: Sequence[float],
        loss_scale: LossScale,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        hypot: bool = True,
        fused: bool = False,
    ) -> None:
        """With `fused` the optimisers compute their own, and only whether a step was skipped is shared."""
        device, count = loss_scale.scale.device, len(rates)
        self.loss_scale, self.betas, self.eps = loss_scale, betas, eps
        self.hypot, self._fused = hypot, fused
        self.eps_floor = 0.0
        """In scaled units; raised by an optimiser whose moments cannot hold less."""
        self.room = torch.inf
        """The largest moment that may be stored; lowered likewise."""
        self.moment_scale = loss_scale.scale.clone()
        """The scales that m and w were stored under; they are brought to the current ones when read."""
        self.powers = torch.ones(count, 2, dtype=torch.float64, device=device)
        """beta1^t and beta2^t over the t steps that were not skipped."""
        self._next, self._unbias = torch.ones_like(self.powers), torch.ones_like(self.powers)
        self._betas = torch.tensor(betas, dtype=torch.float64, device=device)
        self._rates = torch.tensor([-rate for rate in rates], dtype=torch.float64, device=device)
        self._rate = torch.zeros_like(self._rates)
        second = math.sqrt(betas[1]) if hypot else betas[1]
        self._decays = torch.tensor((betas[0], second), device=device)
        self._taken = torch.cat((self._decays.expand(count, 2), torch.zeros(count, 1, device=device)), dim=1)
        self._skipped = torch.tensor((1.0, 1.0, 0.0), device=device).repeat(count, 1)
        self._rescale = torch.ones_like(loss_scale.scale)
        self._correction, self._eps, self._peak = (torch.zeros(count, device=device) for _ in range(3))
        self._finite = torch.ones(count, dtype=torch.bool, device=device)

    def row(self, index: int) -> Row:
        """Return the coefficients of one optimiser."""
        return Row(
            scale=self.loss_scale.scale[index],
            taken=self._taken[index],
            skipped=self._skipped[index],
            correction=self._correction[index],
            eps=self._eps[index],
            finite=self._finite[index],
            peak=self._peak[index],
        )

    def begin(self) -> None:
        """Compute the coefficients of the next steps."""
        self._finite.fill_(True)
        if self._fused:
            return
        scale = self.loss_scale.scale
        torch.mul(self.powers, self._betas, out=self._next)
        torch.sub(self._next, 1, out=self._unbias).neg_()
        torch.div(self._rates, self._unbias[:, 0], out=self._rate)
        self._taken[:, 2].copy_(self._rate)
        self._correction.copy_(self._unbias[:, 1])
        if self.hypot:
            self._correction.rsqrt_()
        else:
            self._correction.reciprocal_()
        if self.loss_scale.enabled:
            torch.div(scale, self.moment_scale, out=self._rescale)
            self._skipped[:, 0].copy_(self._rescale)
            self._skipped[:, 1].copy_(self._rescale if self.hypot else self._rescale.square_())
            torch.mul(self._skipped[:, :2], self._decays, out=self._taken[:, :2])
            self.moment_scale.copy_(scale)
        torch.mul(scale, self.eps, out=self._eps).clamp_(min=self.eps_floor)
        self._peak.zero_()

    def end(self) -> None:
        """Count the steps that were taken and move the loss scales."""
        if not self._fused:
            torch.where(self._finite.unsqueeze(1), self._next, self.powers, out=self.powers)
        # Doubling the scale doubles w and quadruples a square.
        self.loss_scale.advance(self._finite, self._peak, self.room if self.hypot else self.room / 2)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint must hold, the loss scales' included."""
        scales = {f"loss_scale.{name}": value for name, value in self.loss_scale.state().items()}
        return {"moment_scale": self.moment_scale, "powers": self.powers} | scales
