"""The compound loss scale: one number that multiplies a loss, its gradients and both moments, all on the device.

Gradients are never unscaled (arXiv 2102.13565): moments and eps live in scaled units and the ratio m / w cancels
the scale. On an overflow the step is skipped and everything scaled is halved at once; after 10,000 finite steps it
is doubled, if the moments stay representable. The backward pass is seeded in fp32, so the scale may pass 65504.

Every optimiser has a scale of its own; they advance together, once an update, since each operation costs the same
for one number as for three.
"""

from __future__ import annotations

import torch
from torch import Tensor

INITIAL = 1e4
FINITE_STEPS_TO_GROW = 10_000
GROWTH_MARGIN = 1.1
SKIPS_TO_GIVE_UP = 20
FLOOR = 1.0
CEILING = 2.0**40
"""Where gradients are all zero nothing else would stop the growth before fp32 overflows."""


class LossScale:
    """The scales of `count` optimisers and what led to them, each [count]; no value is looked at on the host."""

    def __init__(self, device: torch.device, *, enabled: bool, count: int = 1) -> None:
        self.enabled = enabled
        self.scale = torch.full((count,), INITIAL if enabled else 1.0, device=device)
        self.finite_streak, self.skip_streak, self.skipped = (
            torch.zeros(count, dtype=torch.int32, device=device) for _ in range(3)
        )
        self.exhausted = torch.zeros(count, dtype=torch.bool, device=device)
        """Set by 20 skips in a row, by a skip when the scale has no room left above 1, or by a lost moment."""
        self._skip, self._flag, self._grow = (torch.zeros(count, dtype=torch.bool, device=device) for _ in range(3))
        self._factor = torch.ones(count, device=device)
        self._half, self._one = (torch.full((), value, device=device) for value in (0.5, 1.0))

    def advance(self, finite: Tensor, peak: Tensor, room: float) -> None:
        """Count one step of each optimiser and move its scale.

        `finite` [count] tells whether the step's gradient was; `peak` [count] is the largest moment in scaled units,
        and `room` the largest that may be doubled with the scale.
        """
        skip, flag, grow, factor = self._skip, self._flag, self._grow, self._factor
        torch.logical_not(finite, out=skip)
        self.skip_streak.add_(1).mul_(skip)
        self.skipped.add_(skip)
        self.exhausted.logical_or_(torch.ge(self.skip_streak, SKIPS_TO_GIVE_UP, out=flag))
        # Not finite: a NaN compares as False too.
        self.exhausted.logical_or_(torch.lt(peak, torch.inf, out=flag).logical_not_())
        self.finite_streak.add_(1).mul_(finite)
        if not self.enabled:
            return
        self.exhausted.logical_or_(torch.lt(self.scale, 2 * FLOOR, out=flag).logical_and_(skip))
        torch.gt(self.finite_streak, FINITE_STEPS_TO_GROW, out=grow)
        grow.logical_and_(torch.le(peak, room / (2 * GROWTH_MARGIN), out=flag))
        torch.where(finite, torch.add(self._one, grow, out=factor), self._half, out=factor)
        self.scale.mul_(factor).clamp_(FLOOR, CEILING)
        self.finite_streak.mul_(grow.logical_not_())

    def revive(self) -> None:
        """Let learners that had given up try again, as when their run is resumed after its cause was mended."""
        self.skip_streak.mul_(~self.exhausted)
        self.exhausted.fill_(False)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint must hold."""
        return {
            "scale": self.scale,
            "finite_streak": self.finite_streak,
            "skip_streak": self.skip_streak,
            "skipped": self.skipped,
            "exhausted": self.exhausted,
        }
