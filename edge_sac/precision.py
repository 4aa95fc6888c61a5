"""The number formats a learner can run in, each a named value: the one place that decides a dtype.

The six fixes of Bjorck et al., *Low-Precision Reinforcement Learning* (ICML 2021, arXiv 2102.13565) are six
switches of one type. `fp16` has them all; `fp16-minus-<fix>` takes one away; `fp32` needs none of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch

from edge_sac.config import Config
from edge_sac.errors import ConfigError

Target = Literal["lag", "kahan", "plain"]
Rounding = Literal["kahan", "stochastic", "nearest"]
Moments = Literal["full", "8bit"]
Gradients = Literal["whole", "in-place"]


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
    rounding: Rounding
    """Of each parameter step, in the critics and in log alpha: its error carried, made right on average, or lost."""
    actor_rounding: Rounding
    """The same for the actor, whose error the released code loses."""
    moments: Moments = "full"
    """m and w in `dtype`, or in one byte each."""
    gradients: Gradients = "whole"
    """A buffer for all of a network's gradient, or one for a part of a layer that is used up at once."""

    @property
    def plain(self) -> bool:
        """Return whether the step is single precision's own: Adam, nothing scaled, carried or coded."""
        fixed = (
            self.hadam or self.loss_scaling or self.target == "lag" or "kahan" in (self.rounding, self.actor_rounding)
        )
        return self.dtype == torch.float32 and not fixed

    @property
    def replay_dtype(self) -> str:
        """Return the NumPy name of the format that observations and actions are drawn in."""
        return "float32" if self.dtype == torch.float32 else "float16"

    @property
    def storage(self) -> str:
        """Return the replay's storage that loses nothing of what is drawn."""
        return "fp32" if self.dtype == torch.float32 else "fp16"


_FP32 = Precision(
    name="fp32",
    dtype=torch.float32,
    hadam=False,
    softplus_fix=False,
    normal_fix=False,
    target="plain",
    loss_scaling=False,
    rounding="nearest",
    actor_rounding="nearest",
)
_FP16 = Precision(
    name="fp16",
    dtype=torch.float16,
    hadam=True,
    softplus_fix=True,
    normal_fix=True,
    target="lag",
    loss_scaling=True,
    rounding="kahan",
    actor_rounding="kahan",
)
PRESETS: dict[str, Precision] = {
    "fp32": _FP32,
    "fp16": _FP16,
    "fp16-minus-hadam": replace(_FP16, hadam=False),
    "fp16-minus-softplus": replace(_FP16, softplus_fix=False),
    "fp16-minus-normal": replace(_FP16, normal_fix=False),
    "fp16-minus-kahan-momentum": replace(_FP16, target="plain"),
    "fp16-minus-loss-scaling": replace(_FP16, loss_scaling=False),
    "fp16-minus-kahan-gradients": replace(_FP16, rounding="nearest", actor_rounding="nearest"),
}


def precision(
    name: str,
    target: str = "",
    kahan_actor: bool | None = None,
    *,
    rounding: str = "",
    moments: str = "",
    gradients: str = "",
) -> Precision:
    """Return the preset called `name`, with what is given in place of its own; empty leaves its own.

    Raises ConfigError for an unknown name, and for 8-bit moments of a preset that keeps a square instead of w.
    """
    if name not in PRESETS:
        raise ConfigError(f"precision {name!r} is unknown; choose one of {', '.join(PRESETS)}")
    given = {
        "target": _known("target", target, Target),
        "rounding": _known("rounding", rounding, Rounding),
        "actor_rounding": rounding,
        "moments": _known("moments", moments, Moments),
        "gradients": _known("gradients", gradients, Gradients),
    }
    if kahan_actor is not None:
        given["actor_rounding"] = "kahan" if kahan_actor else "nearest"
    changes: dict[str, Any] = {key: value for key, value in given.items() if value}
    chosen = replace(PRESETS[name], name=name, **changes)
    if chosen.moments == "8bit" and not chosen.hadam:
        raise ConfigError(f"moments '8bit' keep w, the root of Adam's v; {name} keeps v: use fp16, or moments 'full'")
    return chosen


def precision_of(config: Config) -> Precision:
    """Return the number format of a run, its own choices in it. Raises ConfigError for what does not fit together."""
    return precision(
        config.precision,
        config.target,
        config.kahan_actor,
        rounding=config.rounding,
        moments=config.moments,
        gradients=config.gradients,
    )


def _known(what: str, value: str, kinds: Any) -> str:
    if value and value not in get_args(kinds):
        raise ConfigError(f"{what} {value!r} is unknown; choose one of {', '.join(get_args(kinds))}")
    return value
