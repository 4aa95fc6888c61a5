"""Matrix products with the semantics of a GPU's fp16 GEMM on any device: fp32 accumulation, one rounding at the end.

Every common x86 lacks fp16 arithmetic, and torch's own fp16 product is 16 to 22 times slower there than fp32's.
On such a device the operands are widened (exactly), multiplied in fp32 and the result is rounded once. Where the
native fp16 product is faster, as on CUDA and on Arm with fp16 arithmetic, it is called. The choice is measured
once, in `probe`, and carried as a dtype: the one the product is computed in.

Activations and their gradients live in that dtype, holding values of the stored one. Parameters and their gradients
are widened a block at a time, so that no second copy of a network ever exists.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

BLOCK = 524_288
"""Elements of a layer that are widened at a time: 2 MiB, wide enough to multiply at full speed (measured)."""

Part = tuple[slice, slice, slice]
"""Of a layer's weights [K, I, O]."""
_ALL = slice(None)
WHOLE: Part = (_ALL, _ALL, _ALL)


@dataclass(frozen=True)
class MatmulPath:
    """How products of `dtype` operands are computed on one device."""

    dtype: torch.dtype
    compute: torch.dtype
    reason: str


class Weights(Protocol):
    """The parameters of K networks, wherever they come from."""

    def stored(self, layer: int) -> tuple[Tensor, Tensor] | None:
        """Return the layer's weights [K, I, O] and bias [K, 1, O] if they are held, not computed when read."""

    def shape(self, layer: int) -> tuple[int, int, int]:
        """Return (K, I, O)."""

    def read(self, layer: int, part: Part, out: Tensor) -> Tensor:
        """Write a part of the layer's weights to `out`, of its shape, and return it."""

    def bias(self, layer: int, out: Tensor) -> Tensor:
        """Write the layer's bias to `out` [K, 1, O] and return it."""


class Product:
    """The products of a learner's passes, with the scratch memory they need."""

    def __init__(self, path: MatmulPath, device: torch.device, weights: int, activations: int) -> None:
        """Make scratch for layers of up to `weights` parameters and outputs of up to `activations` values."""
        self.dtype, self.compute = path.dtype, path.compute
        self.widened = self.compute != self.dtype
        self._wide = torch.empty(min(BLOCK, weights), dtype=self.compute, device=device)
        self._narrow = torch.empty(activations if self.widened else 0, dtype=self.dtype, device=device)

    def round_(self, values: Tensor) -> Tensor:
        """Round `values`, contiguous and in the compute dtype, to what the stored dtype can hold; return them."""
        if self.widened:
            narrow = self._narrow[: values.numel()].view(values.shape)
            values.copy_(narrow.copy_(values))
        return values

    def affine(self, x: Tensor, weights: Weights, layer: int, out: Tensor) -> Tensor:
        """Write x @ weight + bias to `out` [K, B, O], unrounded, and return it; `x` is [K or 1, B, I]."""
        x = x.expand(len(out), -1, -1)
        stored = weights.stored(layer)
        if stored is not None and not self.widened:
            return _affine(x, *stored, out)
        shape = weights.shape(layer)
        bias = weights.bias(layer, out.new_empty(shape[0], 1, shape[2]))
        parts = _columns(shape, len(self._wide))
        for part in parts:
            wide = weights.read(layer, part, self._scratch(shape, part))
            if len(parts) == 1:
                return _affine(x, wide, bias, out)
            copy, _, columns = part
            out[copy.start, :, columns].copy_(bias[copy.start, :, columns]).addmm_(x[copy.start], wide[0])
        return out

    def grad_input(self, grad: Tensor, weights: Weights, layer: int, out: Tensor, first: int = 0) -> Tensor:
        """Write grad @ weight^T to `out` [K, B, I - first], unrounded: the gradient by the inputs from `first` on."""
        stored = weights.stored(layer)
        if stored is not None and not self.widened:
            return _outer(grad, stored[0][:, first:].mT, out)
        copies, inputs, outputs = weights.shape(layer)
        parts = _rows((copies, inputs, outputs), len(self._wide), first)
        for part in parts:
            wide = weights.read(layer, part, self._scratch((copies, inputs, outputs), part))
            if len(parts) == 1:
                return _outer(grad, wide.mT, out)
            copy, rows, _ = part
            below = out[copy.start, :, rows.start - first : rows.stop - first]
            below.addmm_(grad[copy.start], wide[0].mT, beta=0)
        return out

    def grad_weight(self, x: Tensor, grad: Tensor, out: Tensor) -> None:
        """Write x^T @ grad, rounded once, to `out` [K, I, O], which is in the stored dtype."""
        if self.widened:
            for part, block in self.grad_weight_parts(x, grad):
                out[part].copy_(block)
        else:
            _inner(x.expand(len(out), -1, -1).mT, grad, out)

    def grad_weight_parts(self, x: Tensor, grad: Tensor) -> Iterator[tuple[Part, Tensor]]:
        """Yield x^T @ grad, unrounded, in parts of whole rows; each is good until the next."""
        copies, inputs, outputs = grad.shape[0], x.shape[-1], grad.shape[-1]
        shape = (copies, inputs, outputs)
        parts = _rows(shape, len(self._wide))
        x = x.expand(copies, -1, -1)
        for part in parts:
            wide = self._scratch(shape, part)
            copy, rows, _ = part
            if len(parts) == 1:
                _inner(x.mT, grad, wide)
            else:
                torch.mm(x[copy.start, :, rows].T, grad[copy.start], out=wide[0])
            yield part, wide

    def _scratch(self, shape: tuple[int, int, int], part: Part) -> Tensor:
        sizes = [len(range(*where.indices(length))) for where, length in zip(part, shape, strict=True)]
        return self._wide[: sizes[0] * sizes[1] * sizes[2]].view(sizes)


# Of products with a single column a batched call makes eight times as much work as one call for each network
# (measured with MKL at 256: 140 against 15 us), and their transpose is a multiplication.


def _affine(x: Tensor, weight: Tensor, bias: Tensor, out: Tensor) -> Tensor:
    return torch.baddbmm(bias, x, weight, out=out) if out.shape[-1] > 1 else _each(out.copy_(bias), x, weight, beta=1)


def _each(out: Tensor, a: Tensor, b: Tensor, beta: int) -> Tensor:
    """Write a @ b + beta out to `out` [K, M, N], one network after the other."""
    for one, left, right in zip(out, a, b, strict=True):
        one.addmm_(left, right, beta=beta)
    return out


def _inner(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    return torch.bmm(a, b, out=out) if b.shape[-1] > 1 else _each(out, a, b, beta=0)


def _outer(a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    return torch.bmm(a, b, out=out) if a.shape[-1] > 1 else torch.mul(a, b, out=out)


@lru_cache(maxsize=256)
def _columns(shape: tuple[int, int, int], limit: int) -> tuple[Part, ...]:
    """Return parts of at most `limit` elements: everything, or some columns of one copy."""
    copies, inputs, outputs = shape
    if copies * inputs * outputs <= limit:
        return (WHOLE,)
    return tuple(
        (slice(c, c + 1), _ALL, columns) for c in range(copies) for columns in _steps(0, outputs, limit, inputs)
    )


@lru_cache(maxsize=256)
def _rows(shape: tuple[int, int, int], limit: int, first: int = 0) -> tuple[Part, ...]:
    """Return parts of at most `limit` elements of the rows from `first` on: everything, or rows of one copy."""
    copies, inputs, outputs = shape
    if copies * (inputs - first) * outputs <= limit:
        return ((_ALL, slice(first, None), _ALL),)
    return tuple((slice(c, c + 1), rows, _ALL) for c in range(copies) for rows in _steps(first, inputs, limit, outputs))


def _steps(first: int, last: int, limit: int, each: int) -> list[slice]:
    """Return slices from `first` to `last` of equal lengths, as many items of `each` elements as fit in `limit`."""
    fit = max(1, limit // each)
    count = -(-(last - first) // fit)
    step = -(-(last - first) // count)
    return [slice(start, min(start + step, last)) for start in range(first, last, step)]


def probe(device: torch.device, dtype: torch.dtype, size: int = 256) -> MatmulPath:
    """Return the faster way to multiply `dtype` matrices on `device`, measured on [size, size] operands.

    A native product that is faster but does not accumulate in fp32, as an 8,192-long sum shows, is not taken.
    """
    if dtype == torch.float32:
        return MatmulPath(dtype, torch.float32, "fp32 product")
    if device.type == "cuda":
        # Split sums are otherwise joined in half precision.
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    error = _accumulation_error(device, dtype)
    if error > ACCURATE:
        return MatmulPath(
            dtype,
            torch.float32,
            f"{_short(dtype)} product through fp32, rounded once (the native one is off by {error:.1e} of its sum)",
        )
    if device.type == "cuda":
        return MatmulPath(dtype, dtype, f"native {_short(dtype)} product with fp32 accumulation (off by {error:.1e})")
    a = torch.ones(size, size, dtype=dtype, device=device)
    native, widened = _fastest(a, dtype), _fastest(a, torch.float32)
    times = f"native {1e6 * native:.0f} us, through fp32 {1e6 * widened:.0f} us at {size} x {size}"
    if native < widened:
        return MatmulPath(dtype, dtype, f"native {_short(dtype)} product ({times}, off by {error:.1e})")
    return MatmulPath(dtype, torch.float32, f"{_short(dtype)} product through fp32, rounded once ({times})")


SUM_LENGTH = 8_192
ACCURATE = 2.0**-15
"""Of a sum of magnitudes: 8,192 fp32 roundings leave 2^-18 at the worst likely, fp16 ones 2^-9."""


def _accumulation_error(device: torch.device, dtype: torch.dtype) -> float:
    """Return how far a native 8,192-long product misses the exact one, beyond its own rounding, over its magnitude."""
    generator = torch.Generator().manual_seed(0)
    a = torch.rand(8, SUM_LENGTH, generator=generator).to(dtype)
    b = (torch.rand(SUM_LENGTH, 8, generator=generator) - 0.5).to(dtype)
    exact = a.double() @ b.double()
    magnitude = a.double().abs() @ b.double().abs()
    found = torch.mm(a.to(device), b.to(device)).cpu().double()
    rounding = torch.finfo(dtype).eps / 2 * exact.abs()
    return float((((found - exact).abs() - rounding).clamp(min=0) / magnitude).max())


def _fastest(a: Tensor, compute: torch.dtype, repeats: int = 9) -> float:
    """Return the shortest of several times, in s: other work on the machine can only add to it."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        torch.mm(a.to(compute), a.to(compute)).to(a.dtype)
        times.append(time.perf_counter() - start)
    return min(times)


def _short(dtype: torch.dtype) -> str:
    return {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(dtype, str(dtype))
