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

from edge_sac.flat import Views

GOLDEN = 0x9E3779B9
"""phi in 32 bits: adding it wraps around by itself, as frac does."""
_EXPONENT = 0x7F800000
"""The exponent's bits of an fp32 number."""


class Weyl:
    """A Weyl sequence for each element of [R, N] buffers walked in chunks of at most `length`; `seed` sets r_i."""

    def __init__(self, rows: int, length: int, device: torch.device, seed: int, memory: Tensor | None = None) -> None:
        """`memory`, int32 [rows, length], is where each step's values are computed, if there is some to spare."""
        self.phase = torch.zeros((), dtype=torch.int64, device=device)
        """t phi, a whole number below 2^32."""
        self._offset = torch.zeros((), dtype=torch.int32, device=device)
        start = torch.randint(-(2**31), 2**31, (length, rows), generator=torch.Generator().manual_seed(seed))
        self._start = start.mT.to(torch.int32).contiguous().to(device)
        self.bits = torch.zeros_like(self._start) if memory is None else memory
        """[R, length], this step's values: uniform over all of int32."""

    def advance(self) -> None:
        """Go to the next step."""
        self.phase.add_(GOLDEN).bitwise_and_(0xFFFFFFFF)
        self._offset.copy_(self.phase)

    def compute(self) -> Tensor:
        """Compute this step's values and return them."""
        return torch.add(self._start, self._offset, out=self.bits)


class Spread:
    """A Weyl sequence as fp32 numbers, uniform in half of a width either way."""

    def __init__(self, rows: int, length: int, device: torch.device, seed: int, memory: Tensor | None = None) -> None:
        """`memory`, int32 [rows, length], is overwritten by `spread`, if there is some to spare."""
        self._weyl = Weyl(rows, length, device, seed, memory)
        self._width = torch.zeros((), device=device)
        self.values = torch.zeros(rows, length, device=device)
        """[R, length]."""

    @property
    def phase(self) -> Tensor:
        """Where the sequence stands, []: all that a checkpoint must hold."""
        return self._weyl.phase

    def advance(self) -> None:
        """Go to the next step's values; `spread` follows."""
        self._weyl.advance()

    def spread(self, width: float, enabled: Tensor) -> None:
        """Compute this step's values; where not `enabled` [], they are zero."""
        self._width.fill_(width * 2.0**-32).mul_(enabled)
        self.values.copy_(self._weyl.compute()).mul_(self._width)


class Dither:
    """Stores fp32 buffers [R, N] in a half-precision `dtype`, in chunks of at most `length` of each row."""

    def __init__(self, rows: int, length: int, dtype: torch.dtype, device: torch.device, seed: int = 0) -> None:
        limits = torch.finfo(dtype)
        self._eps, self._smallest_normal = limits.eps, limits.smallest_normal
        self._spacing = torch.empty(rows, length, dtype=torch.int32, device=device)
        self._noise = Spread(rows, length, device, seed, self._spacing)
        self._exponent = torch.tensor(_EXPONENT, dtype=torch.int32, device=device)

    @property
    def phase(self) -> Tensor:
        """Where the sequence stands, []: all that a checkpoint must hold."""
        return self._noise.phase

    def advance(self) -> None:
        """Go to the next step's values; `enable` follows."""
        self._noise.advance()

    def enable(self, enabled: Tensor) -> None:
        """Dither what is stored next; where not `enabled` [], round it to nearest.

        A value that came from storage then goes back unchanged.
        """
        self._noise.spread(self._eps, enabled)

    def store(self, value: Tensor, out: Tensor) -> Tensor:
        """Write `value` [R, n] (fp32, kept) to `out` [R, n]; return `out`."""
        length = value.shape[-1]
        exponent = torch.bitwise_and(value.view(torch.int32), self._exponent, out=self._spacing[:, :length])
        power = exponent.view(torch.float32).clamp_(min=self._smallest_normal)
        return out.copy_(torch.addcmul(value, power, self._noise.values[:, :length], out=power))


class BitDither:
    """Drops the last `cut` bits of fp32 numbers [n], n at most `length`, so that the result is right on average.

    Between two neighbours that differ in the last bit kept, fp32's bits are linear in the value, above and below a
    power of two alike. Where the spacing halves there, a value dithered by either one could never rise past it in
    steps far below a spacing.
    """

    def __init__(self, length: int, cut: int, device: torch.device, seed: int) -> None:
        self._weyl = Weyl(1, length, device, seed)
        self._bits = Views(self._weyl.bits, scratch=True)
        self._half, self._mask, self._kept = (
            torch.tensor(value, dtype=torch.int32, device=device) for value in (1 << (cut - 1), 0, -(1 << cut))
        )
        self._shift = torch.tensor(32 - cut, dtype=torch.int32, device=device)

    @property
    def phase(self) -> Tensor:
        """Where the sequence stands, []: all that a checkpoint must hold."""
        return self._weyl.phase

    def advance(self) -> None:
        """Go to the next step's values; `enable` follows."""
        self._weyl.advance()

    def enable(self, enabled: Tensor) -> None:
        """Dither what is cut next; where not `enabled` [], round it to nearest."""
        mask = self._mask.copy_(enabled).neg_()
        self._weyl.compute().bitwise_right_shift_(self._shift).bitwise_and_(mask).add_(self._half)

    def cut(self, span: slice, values: Tensor) -> Tensor:
        """Dither `values`, fp32 of a span's length, in place and drop the bits; return their bits, int32."""
        return values.view(torch.int32).add_(self._bits(span)[1]).bitwise_and_(self._kept)
