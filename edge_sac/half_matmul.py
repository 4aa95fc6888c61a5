"""Matrix products with the semantics of a GPU's fp16 GEMM on any device: fp32 accumulation, one rounding at the end.

Every common x86 lacks fp16 arithmetic, and torch's own fp16 product is 16 to 22 times slower there than fp32's.
On such a device the operands are widened (exactly), multiplied in fp32 and the result is rounded once. Where the
native fp16 product is faster, as on CUDA and on Arm with fp16 arithmetic, it is called. The choice is measured
once, in `probe`, and carried as a dtype: the one the product is computed in.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class MatmulPath:
    """How products of `dtype` operands are computed on one device."""

    dtype: torch.dtype
    compute: torch.dtype
    reason: str


def matmul(a: Tensor, b: Tensor, compute: torch.dtype) -> Tensor:
    """Return a @ b, batched, in the dtype of `a`, computed in `compute` and rounded once."""
    return torch.matmul(a.to(compute), b.to(compute)).to(a.dtype)


def affine(x: Tensor, weight: Tensor, bias: Tensor, compute: torch.dtype) -> Tensor:
    """Return x @ weight + bias in `compute`, unrounded: shapes [K, B, I], [K, I, O], [K, 1, O] to [K, B, O]."""
    return torch.baddbmm(bias.to(compute), x.to(compute), weight.to(compute))


def probe(device: torch.device, dtype: torch.dtype, size: int = 256) -> MatmulPath:
    """Return the faster way to multiply `dtype` matrices on `device`, measured on [size, size] operands."""
    if dtype == torch.float32:
        return MatmulPath(dtype, torch.float32, "fp32 product")
    if device.type == "cuda":
        return MatmulPath(dtype, dtype, f"native {_short(dtype)} product with fp32 accumulation")
    a = torch.ones(size, size, dtype=dtype, device=device)
    native, widened = _fastest(a, dtype), _fastest(a, torch.float32)
    times = f"native {1e6 * native:.0f} us, through fp32 {1e6 * widened:.0f} us at {size} x {size}"
    if native < widened:
        return MatmulPath(dtype, dtype, f"native {_short(dtype)} product ({times})")
    return MatmulPath(dtype, torch.float32, f"{_short(dtype)} product through fp32, rounded once ({times})")


def _fastest(a: Tensor, compute: torch.dtype, repeats: int = 9) -> float:
    """Return the shortest of several times, in s: other work on the machine can only add to it."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        matmul(a, a, compute)
        times.append(time.perf_counter() - start)
    return min(times)


def _short(dtype: torch.dtype) -> str:
    return {torch.float16: "fp16", torch.bfloat16: "bf16"}.get(dtype, str(dtype))
