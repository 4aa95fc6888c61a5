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


def largest(values: Tensor) -> Tensor:
    """Return the largest magnitude in `values`, [] in fp32; NaN if there is one."""
    low, high = values.aminmax()
    return torch.maximum(-low, high).float()
