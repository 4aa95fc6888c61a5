"""The number formats a learner can run in, each a named value: the one place that decides a dtype.

The six fixes of Bjorck et al., *Low-Precision Reinforcement Learning* (ICML 2021, arXiv 2102.13565) are six
switches of one type. `fp16` has them all; `fp16-minus-<fix>` takes one away; `fp32` needs none of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch

from edge_sac.errors import ConfigError

Target = Literal["lag", "kahan", "plain"]


@dataclass(frozen=True)
class Precision:
    """One number format with its fixes."""

    name: str
    dtype: torch.dtype
    """Of parameters, activations, gradients, optimiser state and target state."""
    hadam: bool
    """Keep w = sqrt(v) and advance it by a hypotenuse, never forming a square."""
    softplus_fix: bool
    """Switch log(1 + exp(z)) to z at 10 instead of 20."""
    normal_fix: bool
    """Divide by sigma first, then square."""
    target: Target
    """How the target critics follow: the paper's Kahan-momentum, the lag code, or theta' += tau (theta - theta')."""
    loss_scaling: bool
    """Scale losses, leave gradients and moments scaled, halve all of them together on an overflow."""
    kahan_gradients: bool
    """Carry the rounding error of each parameter step, in the critics and in log alpha."""
    kahan_actor: bool
    """The same for the actor, which the released code leaves out."""

    @property
    def replay_dtype(self) -> str:
        """Return the NumPy name of the format that observations and actions are stored in."""
        return "float32" if self.dtype == torch.float32 else "float16"


_FP32 = Precision(
    name="fp32",
    dtype=torch.float32,
    hadam=False,
    softplus_fix=False,
    normal_fix=False,
    target="plain",
    loss_scaling=False,
    kahan_gradients=False,
    kahan_actor=False,
)
_FP16 = Precision(
    name="fp16",
    dtype=torch.float16,
    hadam=True,
    softplus_fix=True,
    normal_fix=True,
    target="lag",
    loss_scaling=True,
    kahan_gradients=True,
    kahan_actor=True,
)
PRESETS: dict[str, Precision] = {
    "fp32": _FP32,
    "fp16": _FP16,
    "fp16-minus-hadam": replace(_FP16, hadam=False),
    "fp16-minus-softplus": replace(_FP16, softplus_fix=False),
    "fp16-minus-normal": replace(_FP16, normal_fix=False),
    "fp16-minus-kahan-momentum": replace(_FP16, target="plain"),
    "fp16-minus-loss-scaling": replace(_FP16, loss_scaling=False),
    "fp16-minus-kahan-gradients": replace(_FP16, kahan_gradients=False, kahan_actor=False),
}


def precision(name: str, target: str | None = None, kahan_actor: bool | None = None) -> Precision:
    """Return the preset called `name`, with another target code or the actor's compensation switched where given.

    Raises ConfigError for an unknown preset or target.
    """
    if name not in PRESETS:
        raise ConfigError(f"precision {name!r} is unknown; choose one of {', '.join(PRESETS)}")
    preset = replace(PRESETS[name], name=name)
    if target is not None:
        if target not in get_args(Target):
            raise ConfigError(f"target {target!r} is unknown; choose one of {', '.join(get_args(Target))}")
        preset = replace(preset, target=target)  # type: ignore[arg-type]
    return preset if kahan_actor is None else replace(preset, kahan_actor=kahan_actor)
