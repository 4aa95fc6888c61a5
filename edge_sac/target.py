"""Three ways for target parameters T to follow the online ones psi in the stored dtype.

`KahanTarget` is the paper's Kahan-momentum (arXiv 2102.13565): T scaled by C, with a compensation. `LagTarget`
stores only the lag d = T - psi, which is small and so keeps its relative precision: half the bytes, no constant, no
overflow. `PlainTarget` adds tau (psi - T) as it stands, which in fp16 rounds to nothing; in fp32 it is the stock form.

T exists as a whole nowhere but in the plain form: `TargetWeights` computes the part of a layer that is multiplied.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from edge_sac.flat import Largest, Views, chunk, spans
from edge_sac.half_matmul import Part
from edge_sac.kahan import kahan_add
from edge_sac.networks import Mlp
from edge_sac.precision import Target

FP16_MAX = 65504.0
KAHAN_SCALE = 1e4


class TargetState(Protocol):
    """Target parameters in some code, following one flat vector psi [N]."""

    @property
    def listens(self) -> bool:
        """Return whether `moved` must be called."""

    @property
    def codes(self) -> tuple[Tensor, ...]:
        """Return the flat buffers that T is computed from, each [N], psi among them where it is needed."""

    def moved(self, span: slice, change: Tensor) -> None:
        """Take note that psi[span] changed by `change` (fp32, as stored)."""

    def follow(self, psi: Tensor, tau: float) -> None:
        """Move T by tau towards psi."""

    def form(self, codes: tuple[Tensor, ...], out: Tensor) -> Tensor:
        """Write T, or the part of it whose `codes` are given, to `out` and return it."""

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint must hold."""


class LagTarget:
    """T = psi + d, d stored: d <- d - (psi_new - psi_old) at every step, d <- (1 - tau) d when the target moves.

    Equal to the moving average in exact arithmetic, since (1 - tau) (T - psi) is the lag after T moved. In fp16 the
    lag is right to 2 % while psi moves with a gradient's noise; on a noiseless ramp it rests within 2^-11 / tau of
    its value (10 % at 0.005), and below 2^-25 / tau (6e-6) it no longer shrinks. Errors of the lag, not of T.
    """

    listens = True

    def __init__(self, psi: Tensor) -> None:
        self.lag = torch.zeros_like(psi)
        self._views = Views(self.lag.unsqueeze(0))
        self.codes = (psi, self.lag)
        self._wide = Views(torch.empty(1, chunk(len(psi), psi.device), device=psi.device), scratch=True)

    def moved(self, span: slice, change: Tensor) -> None:
        """Subtract the change of psi from the lag, in fp32, stored once."""
        lag = self._views(span)[1]
        # Widened first: of operands of two dtypes torch would make copies of one.
        lag.copy_(self._wide(span)[1].copy_(lag).sub_(change))

    def follow(self, psi: Tensor, tau: float) -> None:  # noqa: ARG002
        """Shrink the lag by 1 - tau."""
        self.lag.mul_(1 - tau)

    def form(self, codes: tuple[Tensor, ...], out: Tensor) -> Tensor:
        """Write psi + lag to `out`."""
        psi, lag = codes
        return out.copy_(psi).add_(lag)

    def state(self) -> dict[str, Tensor]:
        """Return the lag."""
        return {"lag": self.lag}


class KahanTarget:
    """S = C T with a compensation k: u = tau (C psi - S), added to S by Kahan's sum; T = S / C.

    C psi must stay under 65504: C is halved, with S and k, when the largest weight comes within a factor of 2 of
    that, and the weight that did it is remembered. Without the guard one such weight stops every later critic step.
    """

    listens = False

    def __init__(self, psi: Tensor) -> None:
        self.scale = torch.full((), KAHAN_SCALE, device=psi.device)
        self.halvings = torch.zeros((), dtype=torch.int32, device=psi.device)
        self.culprit = torch.full((), -1, dtype=torch.int64, device=psi.device)
        self.compensation = torch.zeros_like(psi)
        self.scaled = torch.zeros_like(psi)
        self.codes = (self.scaled,)
        self._largest = Largest(psi.dtype, psi.device)
        self._peak_at = torch.zeros((), dtype=torch.int64, device=psi.device)
        self._over = torch.zeros((), dtype=torch.bool, device=psi.device)
        self._factor, self._half, self._one = (torch.full((), v, device=psi.device) for v in (1.0, 0.5, 1.0))
        self._scratch = torch.empty(3, chunk(len(psi), psi.device), device=psi.device)
        for _ in range(16):
            self._guard(psi)
        self.scaled.copy_(psi.float() * self.scale)

    def _guard(self, psi: Tensor) -> None:
        peak = self._largest(psi)
        torch.gt(peak.mul_(self.scale), FP16_MAX / 2, out=self._over)
        torch.where(self._over, self._half, self._one, out=self._factor)
        self.culprit.copy_(torch.where(self._over, self._farthest(psi), self.culprit, out=self._peak_at))
        self.halvings.add_(self._over)
        for part in (self.scale, self.scaled, self.compensation):
            part.mul_(self._factor)

    def _farthest(self, psi: Tensor) -> Tensor:
        """Return where the largest magnitude is, found without a copy of all magnitudes."""
        high, low = torch.argmax(psi), torch.argmin(psi)
        return torch.where(psi.take(low).neg() > psi.take(high), low, high)

    def moved(self, span: slice, change: Tensor) -> None:
        """Do nothing: S does not depend on how psi got where it is."""

    def follow(self, psi: Tensor, tau: float) -> None:
        """Move S by tau towards C psi, fp32 inside, each result stored once."""
        self._guard(psi)
        for span in spans(psi):
            step, before, change = self._scratch[:, : span.stop - span.start]
            scaled = self.scaled[span]
            step.copy_(psi[span]).mul_(self.scale).sub_(before.copy_(scaled)).mul_(tau)
            kahan_add(scaled, self.compensation[span], step, before, change)

    def form(self, codes: tuple[Tensor, ...], out: Tensor) -> Tensor:
        """Write S / C to `out`."""
        return out.copy_(codes[0]).div_(self.scale)

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

    listens = False

    def __init__(self, psi: Tensor) -> None:
        self.value = psi.clone()
        self.codes = (self.value,)
        self._scratch = torch.empty(chunk(len(psi), psi.device), dtype=psi.dtype, device=psi.device)

    def moved(self, span: slice, change: Tensor) -> None:
        """Do nothing: T does not depend on how psi got where it is."""

    def follow(self, psi: Tensor, tau: float) -> None:
        """Add tau times the difference."""
        if self.value.dtype == torch.float32:
            self.value.lerp_(psi, tau)
            return
        for span in spans(psi):
            value = self.value[span]
            value.add_(torch.sub(psi[span], value, out=self._scratch[: len(value)]), alpha=tau)

    def form(self, codes: tuple[Tensor, ...], out: Tensor) -> Tensor:
        """Copy T to `out`."""
        return out.copy_(codes[0])

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


class TargetWeights:
    """The parameters T of K networks, computed part by part from the target's codes."""

    def __init__(self, mlp: Mlp, target: TargetState) -> None:
        self._target = target
        self._views = list(zip(*(mlp.views(code) for code in target.codes), strict=True))
        # One code and nothing to compute: T itself.
        self._plain = isinstance(target, PlainTarget)

    def stored(self, layer: int) -> tuple[Tensor, Tensor] | None:
        """Return T where it is held."""
        return self._views[layer][0] if self._plain else None

    def shape(self, layer: int) -> tuple[int, int, int]:
        """Return (K, I, O)."""
        copies, inputs, outputs = self._views[layer][0][0].shape
        return copies, inputs, outputs

    def read(self, layer: int, part: Part, out: Tensor) -> Tensor:
        """Write a part of T's weights to `out`."""
        return self._target.form(tuple(weight[part] for weight, _ in self._views[layer]), out)

    def bias(self, layer: int, out: Tensor) -> Tensor:
        """Write T's bias to `out`."""
        return self._target.form(tuple(bias for _, bias in self._views[layer]), out)
