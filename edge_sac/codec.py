"""What a replay's storage does with the values of one kind of channels, observations or actions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from edge_sac.errors import ReplayError


class Codec(ABC):
    """Values of C named channels to what a row stores, and back."""

    by_number = False
    """Whether decoding depends on a row's absolute number."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self._single = np.zeros((0, len(names)), dtype=np.float32)

    @abstractmethod
    def encode(self, what: str, values: NDArray[Any], out: NDArray[Any], number: int) -> int:
        """Put values [C] into out [C], stored in row `number`, and return the salt of that row's check.

        Raises ReplayError, naming channel and value as `what`'s, for what cannot be held.
        """

    @abstractmethod
    def matches(self, values: NDArray[Any], stored: NDArray[Any], number: int) -> NDArray[np.bool_]:
        """Return which of values [C] are what row `number` has stored [C], once rounded as it was."""

    @abstractmethod
    def decode(self, stored: NDArray[Any], numbers: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Put what is stored [N, C], in rows `numbers` [N] if `by_number`, into out [N, C] in any float dtype."""

    def salts(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the salt of each row's check, [N]."""
        return np.zeros(len(numbers), dtype=np.int64)

    def begin_episode(self, number: int, stored: Callable[[int, int], NDArray[Any]]) -> None:  # noqa: B027
        """Take notice that row `number` begins an episode; `stored(first, last)` returns what is held of a stretch."""

    def single(self, out: NDArray[Any]) -> NDArray[np.float32]:
        """Return `out` [N, C] itself where it is float32, else as much of it to compute in before rounding into `out`.

        Casting within one NumPy call is three times slower, and allocates.
        """
        if out.dtype == np.float32:
            return out
        if len(self._single) < len(out):
            self._single = np.zeros(out.shape, dtype=np.float32)
        return self._single[: len(out)]

    def refuse(self, what: str, channel: int, value: Any, why: str) -> NoReturn:
        """Raise ReplayError for a channel's value."""
        raise ReplayError(f"{what} channel {self.names[channel]!r} is {value}, {why}")
