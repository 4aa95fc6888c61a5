"""What a replay's storages hold, read by operations of a device: to the bit what the codecs read on the host.

A division is by a tensor: torch turns one by a number into a product with its inverse on CUDA, which rounds otherwise.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from edge_sac.codec import Codec
from edge_sac.codec_byte import ActionByteCodec, RangeCodec
from edge_sac.codec_float import FloatCodec
from edge_sac.codec_round import PER_UNIT, RoundCodec
from edge_sac.value_ranges import RangeTable

_STORED = {"u1": torch.uint8, "i1": torch.int8, "<i2": torch.int16, "<f2": torch.float16, "<f4": torch.float32}
_NEVER = np.iinfo(np.int64).max


class Decoder(Protocol):
    """Reads one kind of channels."""

    def follow(self) -> None:
        """Take note, on the host, of what reading depends on."""

    def read(self, stored: Tensor, numbers: Tensor, dtype: torch.dtype) -> Tensor:
        """Return stored [B, C], of rows `numbers` [B], as values in `dtype`."""


def stored_dtype(name: str) -> torch.dtype:
    """Return the dtype of a row's part, by its NumPy name."""
    return _STORED[name]


class _Floats:
    """IEEE numbers."""

    def follow(self) -> None:
        """Do nothing."""

    def read(self, stored: Tensor, numbers: Tensor, dtype: torch.dtype) -> Tensor:  # noqa: ARG002
        """Round to the dtype."""
        return stored.to(dtype)


class _Fractions:
    """Integers by so many to the unit."""

    def __init__(self, per_unit: float, device: torch.device) -> None:
        self._per_unit = torch.full((1,), per_unit, device=device)

    def follow(self) -> None:
        """Do nothing."""

    def read(self, stored: Tensor, numbers: Tensor, dtype: torch.dtype) -> Tensor:  # noqa: ARG002
        """Divide in fp32 and round to the dtype."""
        return stored.float().div_(self._per_unit).to(dtype)


class _Ranges:
    """Bytes in ranges that hold from some row on."""

    def __init__(self, table: RangeTable, device: torch.device) -> None:
        self.table, self._seen = table, (0, 0)
        self._first = torch.zeros(len(table.first), dtype=torch.int64, device=device)
        self._low, self._step = (torch.zeros(part.shape, device=device) for part in (table.low, table.step))

    def follow(self) -> None:
        """Copy the table when it has changed."""
        table = self.table
        newest = (table.count, int(table.salt[table.count - 1]))
        if newest == self._seen:
            return
        self._seen = newest
        first = table.first.copy()
        first[table.count :] = _NEVER
        for values, copy in ((first, self._first), (table.low, self._low), (table.step, self._step)):
            copy.copy_(torch.from_numpy(values))

    def read(self, stored: Tensor, numbers: Tensor, dtype: torch.dtype) -> Tensor:
        """Return low + step * stored, in fp32, rounded to the dtype."""
        generation = torch.searchsorted(self._first, numbers, right=True).sub_(1)
        values = self._step.index_select(0, generation).mul_(stored)
        return values.add_(self._low.index_select(0, generation)).to(dtype)


def decoder_of(codec: Codec, device: torch.device) -> Decoder:
    """Return what reads what a codec wrote."""
    if isinstance(codec, RangeCodec):
        return _Ranges(codec.table, device)
    if isinstance(codec, RoundCodec):
        return _Fractions(float(PER_UNIT), device)
    if isinstance(codec, ActionByteCodec):
        return _Fractions(127, device)
    if isinstance(codec, FloatCodec):
        return _Floats()
    raise AssertionError(f"no decoder for {type(codec).__name__}")
