"""Three ways for target parameters T to follow the online ones psi in the stored dtype.

`KahanTarget` is the paper's Kahan-momentum (arXiv 2102.13565): T scaled by C, with a compensation. `LagTarget`
stores only the lag d = T - psi, which is small and so keeps its relative precision: half the bytes, no constant, no
overflow. `PlainTarget` adds tau (psi - T) as it stands, which in fp16 rounds to nothing; in fp32 it is the stock form.

T exists as a whole only while the target networks run: it is formed in the gradient buffer, free at that moment.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from edge_sac.flat import largest, spans
from edge_sac.kahan import kahan_add
from edge_sac.precision import Target

FP16_MAX = 65504.0
KAHAN_SCALE = 1e4


class TargetState(Protocol):
    """Target parameters in some code, following one flat vector [N]."""

    def moved(self, span: slice, change: Tensor) -> None:
        """Take note that psi[span] changed by `change` (fp32, as stored)."""

    def follow(self, psi: Tensor, tau: float) -> None:
        """Move T by tau towards psi."""

    def form(self, psi: Tensor, out: Tensor) -> Tensor:
        """Write T to `out` [N] and return it."""

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint must hold."""


class LagTarget:
    """T = psi + d, d stored: d <- d - (psi_new - psi_old) at every step, d <- (1 - tau) d when the target moves.

    Equal to the moving average in exact arithmetic, since (1 - tau) (T - psi) is the lag after T moved. In fp16 the
    lag is right to 2 % while psi moves with a gradient's noise; on a noiseless ramp it rests within 2^-11 / tau of
    its value (10 % at 0.005), and below 2^-25 / tau (6e-6) it no longer shrinks. Errors of the lag, not of T.
    """

    def __init__(self, psi: Tensor) -> None:
        self.lag = torch.zeros_like(psi)

    def moved(self, span: slice, change: Tensor) -> None:
        """Subtract the change of psi from the lag, in fp32, stored once."""
        lag = self.lag[span]
        lag.copy_(change.neg_().add_(lag))

    def follow(self, psi: Tensor, tau: float) -> None:  # noqa: ARG002
        """Shrink the lag by 1 - tau."""
        self.lag.mul_(1 - tau)

    def form(self, psi: Tensor, out: Tensor) -> Tensor:
        """Write psi + lag to `out`."""
        return torch.add(psi, self.lag, out=out)

    def state(self) -> dict[str, Tensor]:
        """Return the lag."""
        return {"lag": self.lag}


class KahanTarget:
    """S = C T with a compensation k: u = tau (C psi - S), added to S by Kahan's sum; T = S / C.

    C psi must stay under 65504: C is halved, with S and k, when the largest weight comes within a factor of 2 of
    that, and the weight that did it is remembered. Without the guard one such weight stops every later critic step.
    """

    def __init__(self, psi: Tensor) -> None:
        self.scale = torch.full((), KAHAN_SCALE, device=psi.device)
        self.halvings = torch.zeros((), dtype=torch.int32, device=psi.device)
        self.culprit = torch.full((), -1, dtype=torch.int64, device=psi.device)
        self.compensation = torch.zeros_like(psi)
        self.scaled = torch.zeros_like(psi)
        self._always = torch.ones((), dtype=torch.bool, device=psi.device)
        for _ in range(16):
            self._guard(psi)
        self.scaled.copy_(psi.float() * self.scale)

    def _guard(self, psi: Tensor) -> None:
        over = largest(psi) * self.scale > FP16_MAX / 2
        factor = torch.where(over, 0.5, 1.0)
        self.culprit.copy_(torch.where(over, psi.abs().argmax(), self.culprit))
        self.halvings.add_(over)
        for part in (self.scale, self.scaled, self.compensation):
            part.mul_(factor)

    def moved(self, span: slice, change: Tensor) -> None:
        """Do nothing: S does not depend on how psi got where it is."""

    def follow(self, psi: Tensor, tau: float) -> None:
        """Move S by tau towards C psi, fp32 inside, each result stored once."""
        self._guard(psi)
        for span in spans(psi):
            step = psi[span].float().mul_(self.scale).sub_(self.scaled[span]).mul_(tau)
            kahan_add(
                self.scaled[span],
                self.compensation[span],
                step,
                torch.empty_like(step),
                torch.empty_like(step),
                self._always,
            )

    def form(self, psi: Tensor, out: Tensor) -> Tensor:
        """Write S / C to `out`."""
        for span in spans(psi):
            out[span] = self.scaled[span].float().div_(self.scale)
        return out

    def state(self) -> dict[str, Tensor]:
        """Return S, its compensation, C and what the guard did."""
        return {
            "scaled": self.scaled,
            "compensation": self.compensation,
            "scale": self.scale,
            "halvings": self.halvings,
            "culprit": self.culprit,
        }


class PlainTarget:
    """T <- T + tau (psi - T) in the stored dtype."""

    def __init__(self, psi: Tensor) -> None:
        self.value = psi.clone()

    def moved(self, span: slice, change: Tensor) -> None:
        """Do nothing: T does not depend on how psi got where it is."""

    def follow(self, psi: Tensor, tau: float) -> None:
        """Add tau times the difference."""
        self.value.add_(psi - self.value, alpha=tau)

    def form(self, psi: Tensor, out: Tensor) -> Tensor:  # noqa: ARG002
        """Copy T to `out`."""
        return out.copy_(self.value)

    def state(self) -> dict[str, Tensor]:
        """Return T."""
        return {"value": self.value}


def target_state(kind: Target, psi: Tensor) -> TargetState:
    """Return the target of that kind, equal to psi."""
    kinds: dict[Target, type[LagTarget] | type[KahanTarget] | type[PlainTarget]] = {
        "lag": LagTarget,
        "kahan": KahanTarget,
        "plain": PlainTarget,
    }
    return kinds[kind](psi)
