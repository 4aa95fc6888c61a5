"""Where hAdam's m and w live between steps: in the learner's dtype, or in one byte each.

One byte for w is a number of five bits of exponent and three of mantissa: w is never negative, and its range is about
fp16's. One byte for m holds m / w, which a law binds: with beta1 = 0.9 and beta2 = 0.999 it cannot pass
7.27 (Cauchy-Schwarz on the two sums), and what a step needs of m is just this ratio. So neither needs a scale per
block of elements, and none is stored. Both are dithered: at 8 bits a rounding to nearest would stop every decay.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from edge_sac.dither import BitDither, Dither, Spread
from edge_sac.flat import Largest, Views


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

    def load(self, span: slice, decay: Tensor) -> tuple[Tensor, Tensor]:
        """Return m and w of the span times `decay` [2, 1], [n] each in fp32, good until the next call."""

    def store(self, span: slice) -> Tensor:
        """Store what `load` returned and the step changed, and keep it; return the largest magnitude stored, []."""

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint must hold."""


class SingleMoments:
    """fp32, worked on where they are stored."""

    def __init__(self, theta: Tensor) -> None:
        limits = torch.finfo(theta.dtype)
        self.room, self.floor = limits.max, 0.0
        self.moments = torch.zeros(2, len(theta), dtype=theta.dtype, device=theta.device)
        self._stored = Views(self.moments)
        self._peak = torch.zeros((), dtype=theta.dtype, device=theta.device)

    def begin(self) -> None:
        """Do nothing."""

    def enable(self, enabled: Tensor) -> None:
        """Do nothing: everything is stored exactly."""

    def load(self, span: slice, decay: Tensor) -> tuple[Tensor, Tensor]:
        """Return the stored values themselves, decayed."""
        both, m, w = self._stored(span)
        both.mul_(decay)
        return m, w

    def store(self, span: slice) -> Tensor:
        """Return the largest w: m is bound by it."""
        return torch.amax(self._stored(span)[2], dim=0, out=self._peak)

    def state(self) -> dict[str, Tensor]:
        """Return m and w."""
        return {"moments": self.moments}


class HalfMoments:
    """A half-precision dtype, dithered."""

    def __init__(self, theta: Tensor, length: int) -> None:
        limits = torch.finfo(theta.dtype)
        self.room, self.floor = limits.max, limits.smallest_normal * limits.eps
        self.moments = torch.zeros(2, len(theta), dtype=theta.dtype, device=theta.device)
        self._stored = Views(self.moments)
        self._wide = Views(torch.empty(2, length, device=theta.device), scratch=True)
        self._dither = Dither(2, length, theta.dtype, theta.device)
        self._largest, self._largest_w = (Largest(theta.dtype, theta.device) for _ in range(2))
        self._peak = torch.zeros((), device=theta.device)

    def begin(self) -> None:
        """Go to the next values of the dither."""
        self._dither.advance()

    def enable(self, enabled: Tensor) -> None:
        """Dither, or round to nearest."""
        self._dither.enable(enabled)

    def load(self, span: slice, decay: Tensor) -> tuple[Tensor, Tensor]:
        """Return the widened values, decayed."""
        both, m, w = self._wide(span)
        both.copy_(self._stored(span)[0]).mul_(decay)
        return m, w

    def store(self, span: slice) -> Tensor:
        """Round by dither."""
        both, m, w = self._stored(span)
        self._dither.store(self._wide(span)[0], both)
        # Row by row: of memory with a gap torch would make a copy first.
        return torch.maximum(self._largest(m), self._largest_w(w), out=self._peak)

    def state(self) -> dict[str, Tensor]:
        """Return m and w, and where the dither stands."""
        return {"moments": self.moments, "dither": self._dither.phase}


_LEVELS = 127
_CUT = 20
"""Bits of fp32's mantissa that a byte has no room for: three are kept."""
_LEAST = 2.0**-16
"""Added to w before it is coded: the byte's 32 powers of two begin here, and w = 0 has the first code."""
_FIRST_CODE = (127 - 16) << 3


class ByteMoments:
    """One byte each: w by its power of two and three bits of mantissa, m by its ratio to w."""

    room = 2.0**16 * 15 / 16
    """The largest w that has a code."""
    floor = _LEAST / 8

    def __init__(self, theta: Tensor, length: int, betas: tuple[float, float]) -> None:
        device = theta.device
        beta1, beta2 = betas
        self.largest_ratio = (1 - beta1) / math.sqrt(1 - beta2) / math.sqrt(max(1 - beta1 * beta1 / beta2, 1e-3))
        self.ratio = torch.zeros(len(theta), dtype=torch.int8, device=device)
        self.root = torch.zeros(len(theta), dtype=torch.uint8, device=device)
        self._ratio, self._root = Views(self.ratio.unsqueeze(0)), Views(self.root.unsqueeze(0))
        self._wide, self._scaled = (Views(torch.empty(rows, length, device=device), scratch=True) for rows in (2, 1))
        self._ratio_dither = Spread(1, length, device, seed=0)
        self._uniform = Views(self._ratio_dither.values, scratch=True)
        self._root_dither = BitDither(length, _CUT, device, seed=2)
        self._largest = Largest(torch.float32, device)
        self._lost = torch.zeros((), dtype=torch.bool, device=device)

    def begin(self) -> None:
        """Go to the next values of the dithers."""
        self._ratio_dither.advance()
        self._root_dither.advance()

    def enable(self, enabled: Tensor) -> None:
        """Dither, or round to nearest."""
        self._ratio_dither.spread(1.0, enabled)
        self._root_dither.enable(enabled)

    def load(self, span: slice, decay: Tensor) -> tuple[Tensor, Tensor]:
        """Return w from its bits and m from its ratio to w, decayed."""
        both, m, w = self._wide(span)
        w.view(torch.int32).copy_(self._root(span)[1]).add_(_FIRST_CODE).bitwise_left_shift_(_CUT)
        w.sub_(_LEAST)
        m.copy_(self._ratio(span)[1]).mul_(w).mul_(self.largest_ratio / _LEVELS)
        both.mul_(decay)
        return m, w

    def store(self, span: slice) -> Tensor:
        """Round both by dither; a w beyond its room is lost, and the peak infinite."""
        _, m, w = self._wide(span)
        scaled = self._scaled(span)[1]
        torch.div(m, torch.clamp(w, min=2.0**-30, out=scaled), out=scaled).mul_(_LEVELS / self.largest_ratio)
        scaled.add_(self._uniform(span)[1]).round_().clamp_(-_LEVELS, _LEVELS)
        self._ratio(span)[1].copy_(scaled)
        bits = self._root_dither.cut(span, torch.add(w, _LEAST, out=scaled)).bitwise_right_shift_(_CUT)
        self._root(span)[1].copy_(bits.sub_(_FIRST_CODE).clamp_(0, 255))
        peak = self._largest(w)
        return peak.masked_fill_(torch.gt(peak, self.room, out=self._lost), torch.inf)

    def state(self) -> dict[str, Tensor]:
        """Return both bytes, and where the dithers stand."""
        phases = {"ratio_dither": self._ratio_dither.phase, "root_dither": self._root_dither.phase}
        return {"ratio": self.ratio, "root": self.root} | phases


def moment_storage(kind: str, theta: Tensor, length: int, betas: tuple[float, float]) -> MomentStorage:
    """Return the storage of that kind ("full" or "8bit") for `theta` [N], walked in spans of at most `length`."""
    if kind == "8bit":
        return ByteMoments(theta, length, betas)
    if theta.dtype in (torch.float32, torch.float64):
        return SingleMoments(theta)
    return HalfMoments(theta, length)
