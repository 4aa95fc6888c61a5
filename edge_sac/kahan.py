"""Kahan compensation: what rounding takes from a small step is kept and given back with the next one."""

from __future__ import annotations

import torch
from torch import Tensor


def kahan_add(
    stored: Tensor,
    compensation: Tensor,
    step: Tensor,
    before: Tensor,
    change: Tensor,
    enabled: Tensor,
) -> None:
    """Add `step` to `stored` in place, the rounding error kept in `compensation`; where not `enabled`, do nothing.

    All of one shape but `enabled` []. `stored` and `compensation` have the storage dtype. `step`, `before` and
    `change` are fp32, finite: the first is used up, the others receive the old value of `stored` and how far it moved.

    y = step - c; s = stored + y; c <- (s - stored) - y; stored <- s. The sum is rounded by writing it to `stored`
    and the error is found by reading it back: a compiler that kept the sum in fp32 would find no error.
    """
    step.sub_(compensation).mul_(enabled)
    before.copy_(stored)
    stored.copy_(torch.add(before, step, out=change))
    change.copy_(stored).sub_(before)
    torch.where(enabled, torch.sub(change, step, out=step), compensation.to(step.dtype), out=step)
    compensation.copy_(step)
