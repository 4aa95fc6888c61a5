"""Three ways to add a small fp32 step to parameters stored in less: its error carried, made right on average, or lost.

`Compensated` is the paper's Kahan-gradients (arXiv 2102.13565): a buffer as large as the parameters. `Dithered` needs
none: it rounds up or down so often that the parameters are right on average, which is what stochastic rounding does,
with values that are evenly spread instead of random, so that they wander half as far. `Nearest` loses every step under
half a spacing.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from edge_sac.dither import BitDither
from edge_sac.flat import Views
from edge_sac.kahan import kahan_add
from edge_sac.precision import Rounding


class StepStorage(Protocol):
    """Adds steps to parameters, a span at a time."""

    def begin(self) -> None:
        """Begin the next step of all spans."""

    def enable(self, enabled: Tensor) -> None:
        """Say whether the steps to come are any, []; where not, they are zero and theta must stay as it is."""

    def add(self, span: slice, theta: Tensor, step: Tensor, before: Tensor, change: Tensor) -> None:
        """Add `step` to `theta`, the parameters of `span`, and write how far they really moved to `change`.

        `step` and `before` are used up; all are [n], fp32 but theta.
        """

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint must hold."""


class Compensated:
    """Kahan's sum, with a compensation [N]."""

    def __init__(self, theta: Tensor) -> None:
        self.compensation = torch.zeros_like(theta)
        self._views = Views(self.compensation.unsqueeze(0))

    def begin(self) -> None:
        """Do nothing."""

    def enable(self, enabled: Tensor) -> None:
        """Do nothing: a step of zero moves nothing."""

    def add(self, span: slice, theta: Tensor, step: Tensor, before: Tensor, change: Tensor) -> None:
        """Add by `kahan_add`."""
        kahan_add(theta, self._views(span)[1], step, before, change)

    def state(self) -> dict[str, Tensor]:
        """Return the compensation."""
        return {"compensation": self.compensation}


class Dithered:
    """Rounding that is right on average over time."""

    def __init__(self, theta: Tensor, length: int) -> None:
        # fp16 keeps 10 bits of fp32's 23, bfloat16 7; below fp16's normal range, 6e-5, the rest is lost to nearest.
        kept = round(-math.log2(torch.finfo(theta.dtype).eps))
        # Another sequence than the moments', so that the errors have nothing in common.
        self._dither = BitDither(length, 23 - kept, theta.device, seed=1)

    def begin(self) -> None:
        """Go to the next values of the dither."""
        self._dither.advance()

    def enable(self, enabled: Tensor) -> None:
        """Dither, or round to nearest, which leaves what came from storage alone."""
        self._dither.enable(enabled)

    def add(self, span: slice, theta: Tensor, step: Tensor, before: Tensor, change: Tensor) -> None:
        """Add, dither and round."""
        before.copy_(theta)
        self._dither.cut(span, torch.add(before, step, out=change))
        theta.copy_(change)
        change.copy_(theta).sub_(before)

    def state(self) -> dict[str, Tensor]:
        """Return where the dither stands."""
        return {"rounding": self._dither.phase}


class Nearest:
    """Rounding to nearest."""

    def begin(self) -> None:
        """Do nothing."""

    def enable(self, enabled: Tensor) -> None:
        """Do nothing: a step of zero moves nothing."""

    def add(self, span: slice, theta: Tensor, step: Tensor, before: Tensor, change: Tensor) -> None:  # noqa: ARG002
        """Add and round."""
        before.copy_(theta)
        theta.copy_(torch.add(before, step, out=change))
        change.copy_(theta).sub_(before)

    def state(self) -> dict[str, Tensor]:
        """Return nothing."""
        return {}


def step_storage(kind: Rounding, theta: Tensor, length: int) -> StepStorage:
    """Return the storage of that kind for `theta` [N], which is walked in spans of at most `length`.

    fp32 parameters have no use for a dither: their spacing is far below any step.
    """
    if kind == "kahan":
        return Compensated(theta)
    if kind == "stochastic" and theta.dtype not in (torch.float32, torch.float64):
        return Dithered(theta, length)
    return Nearest()
