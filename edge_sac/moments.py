"""Where hAdam's m and w live between steps: in the learner's dtype, or in one byte each.

One byte for w is the top half of an fp16 number, five bits of exponent and three of mantissa: w is never negative, and
its range is fp16's. One byte for m holds m / w, which a law binds: with beta1 = 0.9 and beta2 = 0.999 it cannot pass
7.27 (Cauchy-Schwarz on the two sums), and what a step needs of m is just this ratio. So neither needs a scale per
block of elements, and none is stored. Both are dithered: at 8 bits a rounding to nearest would stop every decay.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from edge_sac.dither import Dither, Weyl
from edge_sac.flat import Largest


class MomentStorage(Protocol):
    """m and w of N parameters, read and written a span at a time."""

    room: float
    """The largest w that can be stored."""
    floor: float
    """The smallest w above zero that can be stored."""

    def begin(self) -> None:
        """Begin the next step of all spans."""

    def enable(self, enabled: Tensor) -> None:
        """Say whether what is stored next has changed, []; where not, it must go back as it came."""

    def load(self, span: slice, decay: Tensor) -> Tensor:
        """Return (m, w) of the span times `decay` [2, 1], [2, n] in fp32, good until the next call."""

    def store(self, span: slice, moments: Tensor) -> Tensor:
        """Store what `load` returned and the step changed, and keep it; return the largest magnitude stored, []."""

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint must hold."""


class SingleMoments:
    """fp32, worked on where they are stored."""

    def __init__(self, theta: Tensor) -> None:
        limits = torch.finfo(theta.dtype)
        self.room, self.floor = limits.max, 0.0
        self.moments = torch.zeros(2, len(theta), dtype=theta.dtype, device=theta.device)
        self._peak = torch.zeros((), dtype=theta.dtype, device=theta.device)

    def begin(self) -> None:
        """Do nothing."""

    def enable(self, enabled: Tensor) -> None:
        """Do nothing: everything is stored exactly."""

    def load(self, span: slice, decay: Tensor) -> Tensor:
        """Return the stored values themselves, decayed."""
        return self.moments[:, span].mul_(decay)

    def store(self, span: slice, moments: Tensor) -> Tensor:  # noqa: ARG002
        """Return the largest w: m is bound by it."""
        return torch.amax(moments[1], dim=0, out=self._peak)

    def state(self) -> dict[str, Tensor]:
        """Return m and w."""
        return {"moments": self.moments}


class HalfMoments:
    """A half-precision dtype, dithered."""

    def __init__(self, theta: Tensor, length: int) -> None:
        limits = torch.finfo(theta.dtype)
        self.room, self.floor = limits.max, limits.smallest_normal * limits.eps
        self.moments = torch.zeros(2, len(theta), dtype=theta.dtype, device=theta.device)
        self._wide = torch.empty(2, length, device=theta.device)
        self._dither = Dither(2, length, theta.dtype, theta.device)
        self._largest = Largest(theta.dtype, theta.device)

    def begin(self) -> None:
        """Go to the next values of the dither."""
        self._dither.advance()

    def enable(self, enabled: Tensor) -> None:
        """Dither, or round to nearest."""
        self._dither.enable(enabled)

    def load(self, span: slice, decay: Tensor) -> Tensor:
        """Return the widened values, decayed."""
        return self._wide[:, : span.stop - span.start].copy_(self.moments[:, span]).mul_(decay)

    def store(self, span: slice, moments: Tensor) -> Tensor:
        """Round by dither."""
        return self._largest(self._dither.store(moments, self.moments[:, span]))

    def state(self) -> dict[str, Tensor]:
        """Return m and w, and where the dither stands."""
        return {"moments": self.moments, "dither": self._dither.phase}


_DROPPED = 7
"""Bits of an fp16 number's mantissa that a byte has no room for."""
_LEVELS = 127


class ByteMoments:
    """One byte each: w by its leading bits, m by its ratio to w."""

    room = 61_440.0
    """The largest number of five bits of exponent and three of mantissa."""
    floor = 2.0**-17

    def __init__(self, theta: Tensor, length: int, betas: tuple[float, float]) -> None:
        device = theta.device
        beta1, beta2 = betas
        self.largest_ratio = (1 - beta1) / math.sqrt(1 - beta2) / math.sqrt(max(1 - beta1 * beta1 / beta2, 1e-3))
        self.ratio = torch.zeros(len(theta), dtype=torch.int8, device=device)
        self.root = torch.zeros(len(theta), dtype=torch.uint8, device=device)
        self._wide = torch.empty(2, length, device=device)
        self._scaled = torch.empty(1, length, device=device)
        self._spread = torch.empty(1, length, dtype=torch.float16, device=device)
        self._weyl = Weyl(1, length, device, seed=0)
        self._dither = _CoarseDither(length, device)
        self._largest = Largest(torch.float32, device)

    def begin(self) -> None:
        """Go to the next values of the dithers."""
        self._weyl.advance()
        self._dither.advance()

    def enable(self, enabled: Tensor) -> None:
        """Dither, or round to nearest."""
        self._weyl.spread(1.0, enabled)
        self._dither.enable(enabled)

    def load(self, span: slice, decay: Tensor) -> Tensor:
        """Return w from its bits and m from its ratio to w, decayed."""
        length = span.stop - span.start
        moments = self._wide[:, :length]
        m, w = moments
        half = self._spread[0, :length]
        half.view(torch.int16).copy_(self.root[span]).bitwise_left_shift_(_DROPPED)
        w.copy_(half)
        m.copy_(self.ratio[span]).mul_(w).mul_(self.largest_ratio / _LEVELS)
        return moments.mul_(decay)

    def store(self, span: slice, moments: Tensor) -> Tensor:
        """Round both by dither."""
        m, w = moments
        length = len(m)
        scaled = self._scaled[0, :length]
        torch.div(m, torch.clamp(w, min=2.0**-30, out=scaled), out=scaled).mul_(_LEVELS / self.largest_ratio)
        scaled.add_(self._weyl.values[0, :length]).round_().clamp_(-_LEVELS, _LEVELS)
        self.ratio[span].copy_(scaled)
        half = self._dither.store(moments[1:], self._spread[:, :length])[0].clamp_(min=0)
        bits = half.view(torch.int16)
        self.root[span].copy_(bits.add_(1 << (_DROPPED - 1)).bitwise_right_shift_(_DROPPED))
        return self._largest(w)

    def state(self) -> dict[str, Tensor]:
        """Return both bytes, and where the dithers stand."""
        return {"ratio": self.ratio, "root": self.root, "dither": self._weyl.phase, "root_dither": self._dither.phase}


class _CoarseDither(Dither):
    """Dithers by the spacing of three bits of mantissa into fp16, whose own rounding is fine enough not to matter."""

    def __init__(self, length: int, device: torch.device) -> None:
        super().__init__(1, length, torch.float16, device, seed=2)
        self._eps = 2.0**-3


def moment_storage(kind: str, theta: Tensor, length: int, betas: tuple[float, float]) -> MomentStorage:
    """Return the storage of that kind ("full" or "8bit") for `theta` [N], walked in spans of at most `length`."""
    if kind == "8bit":
        return ByteMoments(theta, length, betas)
    if theta.dtype in (torch.float32, torch.float64):
        return SingleMoments(theta)
    return HalfMoments(theta, length)
