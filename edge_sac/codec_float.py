"""Storage as IEEE floats, in fp16 or fp32: what does not fit is refused, never stored as an infinity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sac.codec import Codec


class FloatCodec(Codec):
    """Rounds to `dtype`."""

    def __init__(self, names: Sequence[str], dtype: str) -> None:
        super().__init__(names)
        self._dtype = np.dtype(dtype)
        self._rounded = np.zeros(len(names), dtype=dtype)
        self._finite = np.zeros(len(names), dtype=np.bool_)

    def encode(self, what: str, values: NDArray[Any], out: NDArray[Any], number: int) -> int:  # noqa: ARG002
        with np.errstate(over="ignore"):
            out[:] = values
        if not np.logical_and.reduce(np.isfinite(out, out=self._finite)):
            channel = int(np.flatnonzero(~self._finite)[0])
            self.refuse(
                what,
                channel,
                values[channel],
                f"which {self._dtype} cannot hold (at most {np.finfo(self._dtype).max}): mend the sensor, scale it or "
                "choose the storage fp32",
            )
        return 0

    def matches(self, values: NDArray[Any], stored: NDArray[Any], number: int) -> NDArray[np.bool_]:  # noqa: ARG002
        with np.errstate(over="ignore"):
            self._rounded[:] = values
        same: NDArray[np.bool_] = self._rounded == stored
        return same

    def decode(self, stored: NDArray[Any], numbers: NDArray[np.int64], out: NDArray[Any]) -> None:  # noqa: ARG002
        np.copyto(out, stored, casting="same_kind")
