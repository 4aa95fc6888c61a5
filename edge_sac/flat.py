"""Walking over a flat buffer in chunks, so that fp32 temporaries stay small and in cache."""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 16_384
"""Elements: four fp32 temporaries of this length fit in a core's second-level cache."""


def spans(length: int) -> list[slice]:
    """Return the slices of at most CHUNK elements that cover `length`."""
    return [slice(start, min(start + CHUNK, length)) for start in range(0, length, CHUNK)]


def largest(values: Tensor) -> Tensor:
    """Return the largest magnitude in `values`, [] in fp32; NaN if there is one."""
    low, high = values.aminmax()
    return torch.maximum(-low, high).float()
