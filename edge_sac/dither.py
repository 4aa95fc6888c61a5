"""Storing fp32 values in half precision without bias: a rounding whose errors cancel over time.

Rounding to nearest is blind to a change under half a spacing, and Adam's decay of w, 5e-4 of it, is just about that:
w of a steady, sparse or falling gradient ends up to four times wrong, and a momentum of a few subnormal steps never
decays at all. Adding a uniform value in half a spacing either way before rounding makes the stored value right on
average. The values are no random numbers but a Weyl sequence, frac(r_i + t phi), r_i fixed and phi the golden ratio:
evenly spread over time for each element, cheap, and the same again after a resume.
"""

from __future__ import annotations

import torch
from torch import Tensor

GOLDEN = 0.6180339887498949
_EXPONENT = 0x7F800000
"""The exponent's bits of an fp32 number."""


class Dither:
    """The sequence for buffers [R, N] stored in `dtype`, walked in chunks of at most `length` elements of each row."""

    def __init__(self, rows: int, length: int, dtype: torch.dtype, device: torch.device) -> None:
        self.phase = torch.zeros((), dtype=torch.float64, device=device)
        self._exact = dtype in (torch.float32, torch.float64)
        if self._exact:
            return
        limits = torch.finfo(dtype)
        self._eps, self._smallest_normal = limits.eps, limits.smallest_normal
        start = torch.rand(length, rows, generator=torch.Generator().manual_seed(0))
        self._start = start.mT.contiguous().to(device)
        self._noise = torch.empty_like(self._start)
        self._spacing = torch.empty(rows, length, dtype=torch.int32, device=device)

    def advance(self, enabled: Tensor) -> None:
        """Go to the next step's values; where not `enabled` [], they are zero and storing rounds to nearest.

        A value that came from storage then goes back unchanged.
        """
        self.phase.add_(GOLDEN).frac_()
        if not self._exact:
            torch.add(self._start, self.phase.float(), out=self._noise).frac_().sub_(0.5).mul_(enabled * self._eps)

    def store(self, value: Tensor, out: Tensor) -> Tensor:
        """Write `value` [R, n] (fp32, kept) to `out` [R, n], dithered unless `out` is exact; return `out`."""
        if self._exact:
            return out.copy_(value)
        length = value.shape[-1]
        exponent = torch.bitwise_and(value.view(torch.int32), _EXPONENT, out=self._spacing[:, :length])
        power = exponent.view(torch.float32).clamp_(min=self._smallest_normal)
        return out.copy_(torch.addcmul(value, power, self._noise[:, :length], out=power))
