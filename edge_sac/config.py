"""Every setting of a run, typed and bounded; `config.toml` in the run's folder is this, complete."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec
import tomli_w
from msgspec import Meta

from edge_sac.errors import ConfigError

Positive = Annotated[float, Meta(gt=0)]
Share = Annotated[float, Meta(gt=0, lt=1)]
Count = Annotated[int, Meta(ge=1)]


class AgentConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The algorithm's constants."""

    hidden: tuple[Count, ...] = (128, 128)
    batch: Count = 256
    actor_lr: Positive = 3e-4
    critic_lr: Positive = 3e-4
    alpha_lr: Positive = 3e-4
    beta1: Share = 0.9
    beta2: Share = 0.999
    eps: Positive = 1e-8
    gamma: Share = 0.99
    tau: Share = 0.005
    target_period: Count = 1
    initial_alpha: Positive = 0.1
