"""Where the rows of a replay lie that a GPU reads: in its own memory, or in the host's, pinned (not measured yet).

Pinned memory can be read by the GPU where it lies, over the bus, and on a Jetson it is the same memory anyway. torch
has no name for such a tensor; it is made from the address, and tried before it is trusted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_TYPES = {torch.uint8: "|u1", torch.int8: "|i1", torch.int16: "<i2", torch.float16: "<f2", torch.float32: "<f4"}


class DeviceColumn:
    """A tensor [N, ...] in the device's own memory."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self.values = torch.zeros(shape, dtype=dtype, device=device)

    def write(self, first: int, values: Tensor) -> None:
        """Put values [n, ...] of the host in place from `first` on; they may be changed afterwards."""
        self.values[first : first + len(values)].copy_(values)


class PinnedColumn:
    """A tensor [N, ...] in pinned memory of the host, read by a CUDA device where it lies."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self._host = torch.zeros(shape, dtype=dtype, pin_memory=True)
        self._device = device
        self.values = torch.as_tensor(_Address(self._host), device=device)

    def write(self, first: int, values: Tensor) -> None:
        """Put values in place once the device has read what it was told to before."""
        torch.cuda.current_stream(self._device).synchronize()
        self._host[first : first + len(values)].copy_(values)


Column = DeviceColumn | PinnedColumn


@dataclass(frozen=True)
class _Address:
    """A pinned tensor as the CUDA array interface describes it; host and device address are the same."""

    pinned: Tensor

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": tuple(self.pinned.shape),
            "typestr": _TYPES[self.pinned.dtype],
            "data": (self.pinned.data_ptr(), False),
            "strides": None,
            "version": 2,
        }
