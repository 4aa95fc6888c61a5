"""Walking over a flat buffer in chunks, so that fp32 temporaries stay small and in cache."""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 65_536
"""Elements on a CPU: fewer and longer operations beat cache-sized ones up to here (measured)."""
CUDA_CHUNK = 1_048_576
"""On CUDA each operation is a launch, and the temporaries only have to stay small beside the rest: 16 MiB."""


def chunk(length: int, device: torch.device) -> int:
    """Return how many elements of a buffer of `length` are worked on at a time."""
    return min(length, CUDA_CHUNK if device.type == "cuda" else CHUNK)


def spans(buffer: Tensor) -> list[slice]:
    """Return the slices of one chunk each that cover a flat buffer."""
    length, step = len(buffer), chunk(len(buffer), buffer.device)
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


class Largest:
    """Finds the largest magnitude in buffers of one dtype, without allocating."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._low, self._high = (torch.zeros((), dtype=dtype, device=device) for _ in range(2))
        self._wide = torch.zeros((), device=device)

    def __call__(self, values: Tensor) -> Tensor:
        """Return the largest magnitude in `values`, [] in fp32, good until the next call; NaN if there is one."""
        torch.aminmax(values, out=(self._low, self._high))
        return self._wide.copy_(torch.maximum(self._low.neg_(), self._high, out=self._high))


class Views:
    """The views of the spans of a buffer [R, N], each made once: making one costs as much as its use."""

    def __init__(self, buffer: Tensor, *, scratch: bool = False) -> None:
        """`scratch` memory is only a chunk long and every span begins at its start."""
        self._buffer, self._scratch = buffer, scratch
        self._made: dict[tuple[int, int], tuple[Tensor, ...]] = {}

    def __call__(self, span: slice) -> tuple[Tensor, ...]:
        """Return the span of the whole buffer [R, n], then of each row [n]."""
        key = (span.start, span.stop)
        if key not in self._made:
            part = self._buffer[:, : span.stop - span.start] if self._scratch else self._buffer[:, span]
            self._made[key] = (part, *part)
        return self._made[key]
