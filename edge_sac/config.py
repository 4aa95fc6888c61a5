"""Every setting of a run, typed and bounded; `config.toml` in the run's folder is this, complete."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import tomli_w
from msgspec import Meta

from edge_sac.errors import ConfigError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Positive = Annotated[float, Meta(gt=0, le=1e9)]
Share = Annotated[float, Meta(gt=0, lt=1)]
Count = Annotated[int, Meta(ge=1, le=10**12)]
Natural = Annotated[int, Meta(ge=0, le=2**63 - 1)]
MOST_TRANSITIONS = 10**9


class AgentConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The algorithm's constants; names and meanings are the paper's (arXiv 2102.13565)."""

    hidden: Annotated[tuple[Annotated[int, Meta(ge=1, le=65_536)], ...], Meta(min_length=1, max_length=8)] = (
        128,
        128,
    )
    batch: Annotated[int, Meta(ge=1, le=1_048_576)] = 256
    actor_lr: Positive = 3e-4
    critic_lr: Positive = 3e-4
    alpha_lr: Positive = 3e-4
    beta1: Share = 0.9
    beta2: Share = 0.999
    eps: Positive = 1e-8
    """Adam's own, in unscaled units; it is fp32 inside the step, so 1e-8 does not vanish."""
    gamma: Share = 0.99
    tau: Share = 0.005
    n_step: Annotated[int, Meta(ge=1, le=1_000)] = 1
    """Steps of reward in a critic's target before it bootstraps."""
    target_period: Count = 2
    """Updates between two movements of the target."""
    initial_alpha: Positive = 0.1
    critic_norm: bool = False
    """Normalise the critics' hidden layers, as DroQ and RLPD do to take many updates per step; through autograd."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One training run."""

    robot: str = "furuta"
    """A known robot's name or the path of its TOML file."""
    env: str = ""
    """The id of a Gymnasium environment, trained instead of the robot."""
    physics: Literal["auto", "pybullet", "equations"] = "auto"
    precision: str = "fp16"
    target: Literal["", "lag", "kahan", "plain"] = ""
    """How the target critics follow; empty: as the precision says."""
    rounding: Literal["", "kahan", "stochastic", "nearest"] = ""
    """How parameter steps are rounded into storage; empty: as the precision says."""
    kahan_actor: bool | None = None
    """Compensate the actor's steps too; absent: as `rounding` says."""
    moments: Literal["", "full", "8bit"] = ""
    """What m and w are stored in; empty: as the precision says."""
    gradients: Literal["", "whole", "in-place"] = ""
    """Whether a network's gradient is ever held as a whole; empty: as the precision says."""
    seed: Natural = 0
    steps: Count = 40_000
    """Environment steps; the episode in which the last one falls is finished."""
    random_steps: Annotated[int, Meta(ge=1, le=10**9)] = 1_000
    """Steps of uniformly random actions before the policy acts and updates begin."""
    updates_per_step: Annotated[float, Meta(gt=0, le=1_000)] = 1.0
    storage: Literal["", "fp16", "u8", "just-round", "fp32"] = ""
    """What the replay keeps observations and actions in; empty: as the precision says."""
    sampling: Literal["uniform", "prioritized"] = "uniform"
    """How transitions are drawn: all alike, or those with large errors more often (arXiv 1511.05952)."""
    replay_capacity: Annotated[int, Meta(ge=1, le=MOST_TRANSITIONS)] = 1_000_000
    eval_every: Count = 2_500
    """Steps between evaluations, each at the end of an episode."""
    eval_episodes: Annotated[int, Meta(ge=1, le=10_000)] = 10
    checkpoint_seconds: Positive = 60.0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Annotated[int, Meta(ge=0, le=1_024)] = 0
    """Of torch on the CPU; 0: as many as a probe at the run's start finds worth their cores."""
    agent: AgentConfig = AgentConfig()


def parse_config(text: str, where: str, overrides: Mapping[str, Any] | None = None) -> Config:
    """Return the configuration in TOML `text` with top-level `overrides` laid over it.

    Raises ConfigError naming `where`, the key and what was expected.
    """
    try:
        raw: dict[str, Any] = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{where} is not TOML: {error}") from error
    try:
        origin, given = where, raw
        msgspec.convert(given, Config)
        origin, given = "command line", raw | dict(overrides or {})
        return msgspec.convert(given, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{origin}: {_explain(str(error), given)}") from error


def load_config(path: Path, overrides: Mapping[str, Any] | None = None) -> Config:
    """Return the configuration in a file; raises ConfigError where it is missing or wrong."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the configuration {path}: {error}") from error
    return parse_config(text, str(path), overrides)


def dump_config(config: Config) -> str:
    """Return the complete configuration as TOML."""
    raw = msgspec.to_builtins(config)
    return tomli_w.dumps({key: value for key, value in raw.items() if value is not None})


def _explain(message: str, raw: dict[str, Any]) -> str:
    """Return msgspec's message with the offending value, and the known keys where one is unknown."""
    problem, _, place = message.partition(" - at `$.")
    if "unknown field" in problem:
        section = AgentConfig if place.startswith("agent") else Config
        return f"{message}; known keys: {', '.join(section.__struct_fields__)}"
    value: Any = raw
    for key in place.rstrip("`").split("."):
        value = value.get(key.partition("[")[0]) if isinstance(value, dict) else None
    return message if value is None else f"{message} (got {value!r})"
