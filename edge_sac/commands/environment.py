"""What a run trains on: a robot's twin or any Gymnasium environment, with the contract a policy for it must keep."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import gymnasium
import msgspec
import numpy as np
from gymnasium.spaces import Box

from edge_sac.config import Config
from edge_sac.contract import ActionChannel, Contract, ObservationChannel
from edge_sac.errors import ConfigError, MissingExtra, NonFinite
from edge_sac.evaluation import finite_obs, finite_reward
from edge_sac.normalizer import resolving
from edge_sac.seeding import CALIBRATION, episode_seed
from robots.observation import Observer
from robots.robot_file import load_robot
from robots.spec import RobotSpec
from sim.registration import DMC, DMC_TASKS, make_env, resolve_physics, suite_available, twin_hash

CALIBRATION_STEPS = 1_000
NOT_MET = ("link", "sim", "randomize", "reset", "task")
"""Sections of a robot's description that a policy acting on it does not depend on."""


@runtime_checkable
class Described(Protocol):
    """A Gymnasium environment that names its channels, [O] and [A], and knows its rate."""

    @property
    def observation_names(self) -> tuple[str, ...]: ...
    @property
    def action_names(self) -> tuple[str, ...]: ...
    @property
    def control_hz(self) -> float: ...


@dataclass(frozen=True)
class Environment:
    """How to open the environment, and what it is."""

    make: Callable[[], Any]
    contract: Contract
    """Of the environment alone: nothing about weights or training, and no normaliser of a Gymnasium environment."""
    physics: str
    """What the twin runs on; auto where there is no twin."""
    description: str
    """One line for the log: what runs, and on which physics."""
    definition: str = ""
    """A hash of all that makes a twin and its task; a run goes on with the same only."""


def environment(config: Config) -> Environment:
    """Return what `config` trains on; raises SpecError or ConfigError naming what cannot be trained on."""
    return _gymnasium(config) if config.env else _robot(config)


def robot_contract(spec: RobotSpec) -> Contract:
    """Return the contract of a robot; its hash is over what a policy meets, not over the twin or the task."""
    met = {key: value for key, value in msgspec.to_builtins(spec).items() if key not in NOT_MET}
    bounds = Observer(spec)
    observed = [
        ObservationChannel(
            name=channel.name,
            unit=channel.unit,
            lower=float(lower),
            upper=float(upper),
            mean=channel.center,
            scale=channel.scale,
        )
        for channel, lower, upper in zip(spec.observation.channels, bounds.lower, bounds.upper, strict=True)
    ]
    return Contract(
        robot=spec.name,
        kind="robot",
        observation=tuple(observed),
        action=tuple(ActionChannel(name=joint.name, unit="1", lower=-1.0, upper=1.0) for joint in spec.actuated),
        robot_hash=hashlib.sha256(msgspec.json.encode(met, order="deterministic")).hexdigest(),
        control_hz=spec.control_hz,
        rate_tolerance=spec.rate_tolerance,
        limits={joint.name: _limits(joint) for joint in spec.joint},
        action_range={joint.name: ends for joint, ends in zip(spec.actuated, spec.action.range, strict=True)},
        speed_filter_time=spec.observation.speed_filter_time,
    )


def _limits(joint: Any) -> dict[str, float]:
    known = {"position_lower": joint.position[0], "position_upper": joint.position[1], "speed": joint.speed}
    return known | ({"torque": joint.torque} if hasattr(joint, "torque") else {})


def _robot(config: Config) -> Environment:
    spec = load_robot(config.robot)
    physics = resolve_physics(config.physics)
    return Environment(
        make=lambda: make_env(config.robot, physics),
        contract=robot_contract(spec),
        physics=physics,
        description=f"robot {spec.name} at {spec.control_hz:g} Hz, twin on {physics}",
        definition=twin_hash(config.robot),
    )


def _gymnasium(config: Config) -> Environment:
    _check_suite(config.env)

    def make() -> gymnasium.Env[Any, Any]:
        try:
            return gymnasium.make(config.env)
        except Exception as error:  # whatever another project's constructor raises is the finding
            raise ConfigError(f"environment {config.env!r} cannot be made: {type(error).__name__}: {error}") from error

    env = make()
    try:
        contract = _space_contract(config.env, env)
    finally:
        env.close()
    return Environment(make, contract, "auto", f"environment {config.env}")


def _check_suite(name: str) -> None:
    """Raise for a task of the DeepMind Control Suite that is not known, or while the suite is not installed."""
    if not name.startswith(DMC):
        return
    if name.removeprefix(DMC) not in DMC_TASKS:
        raise ConfigError(f"env = {name!r}: unknown task; known are: {', '.join(DMC + task for task in DMC_TASKS)}")
    if (remedy := suite_available()) != "ok":
        raise MissingExtra(f"dm-control is not installed; {remedy}")


def _space_contract(name: str, env: gymnasium.Env[Any, Any]) -> Contract:
    action, observed = env.action_space, env.observation_space
    for what, space in (("action", action), ("observation", observed)):
        if not isinstance(space, Box) or len(space.shape) != 1:
            raise ConfigError(f"{name}: the {what} space is {space}; a Box of one dimension is needed")
    assert isinstance(action, Box)
    assert isinstance(observed, Box)
    if not (action.is_bounded() and np.issubdtype(action.dtype, np.floating)):
        raise ConfigError(f"{name}: the action space is {action}; every action must be continuous, with finite bounds")
    described = env.unwrapped if isinstance(env.unwrapped, Described) else None
    obs_names = described.observation_names if described else [f"obs[{i}]" for i in range(len(observed.low))]
    action_names = described.action_names if described else [f"action[{i}]" for i in range(len(action.low))]
    channels = [
        ObservationChannel(name=channel, unit="1", lower=_bound(low), upper=_bound(high), mean=0.0, scale=1.0)
        for channel, low, high in zip(obs_names, observed.low, observed.high, strict=True)
    ]
    driven = [
        ActionChannel(name=channel, unit="1", lower=float(low), upper=float(high))
        for channel, low, high in zip(action_names, action.low, action.high, strict=True)
    ]
    return Contract(
        robot=name,
        kind="gym",
        observation=tuple(channels),
        action=tuple(driven),
        control_hz=described.control_hz if described else None,
    )


def _bound(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def calibrated(where: Environment, seed: int) -> Environment:
    """Return the environment with the normaliser that random actions show to be needed; a robot's file has its own.

    Raises ConfigError for an environment that gives a NaN already here.
    """
    if where.contract.kind == "robot":
        return where
    env = where.make()
    try:
        normalizer = resolving(_random_observations(env, where.contract, seed))
    except NonFinite as error:
        raise ConfigError(f"{where.contract.robot} under random actions: {error}; mend the environment") from error
    finally:
        env.close()
    channels = [
        msgspec.structs.replace(channel, mean=float(mean), scale=float(scale))
        for channel, mean, scale in zip(where.contract.observation, normalizer.mean, normalizer.scale, strict=True)
    ]
    return replace(where, contract=msgspec.structs.replace(where.contract, observation=tuple(channels)))


def _random_observations(env: gymnasium.Env[Any, Any], contract: Contract, seed: int) -> Any:
    """Return [CALIBRATION_STEPS, O] observations under random actions, to see which channels fp16 resolves."""
    rng = np.random.default_rng(episode_seed(seed, CALIBRATION, 0))
    assert isinstance(env.action_space, Box)
    names = [channel.name for channel in contract.observation]
    seen: list[Any] = []
    episode, ended = 0, True
    while len(seen) < CALIBRATION_STEPS:
        if ended:
            obs, _ = env.reset(seed=episode_seed(seed, CALIBRATION, episode))
            episode += 1
            ended = False
        else:
            action = rng.uniform(env.action_space.low, env.action_space.high).astype(env.action_space.dtype)
            obs, reward, terminated, truncated, _ = env.step(action)
            ended = bool(terminated or truncated)
            finite_reward(reward, f"step {len(seen)}")
        finite_obs(obs, names, f"step {len(seen)}")
        seen.append(np.asarray(obs, dtype=np.float64))
    return np.stack(seen)
