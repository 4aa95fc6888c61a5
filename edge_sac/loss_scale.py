"""The compound loss scale: one number that multiplies a loss, its gradients and both moments, all on the device.

Gradients are never unscaled (arXiv 2102.13565): moments and eps live in scaled units and the ratio m / w cancels
the scale. On an overflow the step is skipped and everything scaled is halved at once; after 10,000 finite steps it
is doubled, if the moments stay representable. The backward pass is seeded in fp32, so the scale may pass 65504.
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
    """The scale and what led to it, as tensors of shape []; nothing here looks at a value on the host."""

    def __init__(self, device: torch.device, *, enabled: bool) -> None:
        self.enabled = enabled
        self.scale = torch.full((), INITIAL if enabled else 1.0, device=device)
        self.finite_streak = torch.zeros((), dtype=torch.int32, device=device)
        self.skip_streak = torch.zeros((), dtype=torch.int32, device=device)
        self.skipped = torch.zeros((), dtype=torch.int32, device=device)
        self.exhausted = torch.zeros((), dtype=torch.bool, device=device)
        """Set by 20 skips in a row, by a skip when the scale has no room left above 1, or by a lost moment."""

    def advance(self, finite: Tensor, peak: Tensor, room: float) -> None:
        """Count one step and move the scale.

        `finite` [] tells whether the step's gradient was; `peak` [] is the largest moment in scaled units, and
        `room` the largest that may be doubled with the scale.
        """
        self.skip_streak.add_(1).mul_(~finite)
        self.skipped.add_(~finite)
        self.exhausted.logical_or_((self.skip_streak >= SKIPS_TO_GIVE_UP) | ~torch.isfinite(peak))
        self.finite_streak.add_(1).mul_(finite)
        if not self.enabled:
            return
        self.exhausted.logical_or_(~finite & (self.scale * 0.5 < FLOOR))
        grow = (self.finite_streak > FINITE_STEPS_TO_GROW) & (GROWTH_MARGIN * 2 * peak <= room)
        factor = torch.where(finite, torch.where(grow, 2.0, 1.0), 0.5)
        self.scale.mul_(factor).clamp_(FLOOR, CEILING)
        self.finite_streak.mul_(~grow)

    def revive(self) -> None:
        """Let a learner that had given up try again, as when its run is resumed after its cause was mended."""
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
