"""Kahan compensation: what rounding takes from a small step is kept and given back with the next one."""

from __future__ import annotations

import torch
from torch import Tensor


def kahan_add(stored: Tensor, compensation: Tensor, step: Tensor, before: Tensor, change: Tensor) -> None:
    """Add `step` to `stored` in place, the rounding error kept in `compensation`.

    All of one shape. `stored` and `compensation` have the storage dtype. `step`, `before` and `change` are fp32,
    finite: the first two are used up, `change` receives how far `stored` moved.

    y = step - c; s = stored + y; c <- (s - stored) - y; stored <- s. The sum is rounded by writing it to `stored`
    and the error is found by reading it back: a compiler that kept the sum in fp32 would find no error. A step of
    zero leaves stored - c, which is the parameter, as it is to the last bit.
    """
    step.sub_(change.copy_(compensation))
    before.copy_(stored)
    stored.copy_(torch.add(before, step, out=change))
    change.copy_(stored).sub_(before)
    compensation.copy_(torch.sub(change, step, out=step))
