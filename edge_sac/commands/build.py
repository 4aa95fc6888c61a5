"""Putting a run's parts together: environment, learner, replay and records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import torch

from edge_sac.agent import Agent
from edge_sac.commands.environment import Environment, environment
from edge_sac.config import Config
from edge_sac.contract import Contract
from edge_sac.device import choose_device
from edge_sac.half_matmul import MatmulPath, probe
from edge_sac.normalizer import Normalizer
from edge_sac.precision import precision
from edge_sac.replay import Replay
from edge_sac.run_folder import REPLAY, Start, create_run, read_run, refuse_occupied
from edge_sac.trainer import Interface, Progress, Trainer


class Run(NamedTuple):
    """A run that is ready to train."""

    trainer: Trainer
    config: Config
    start: Start
    environment: Environment
    newer: int
    """Transitions in the replay that are newer than the checkpoint: above 0 after a kill."""


def new_run(run: Path, config: Config, report: Callable[[Progress], None]) -> Run:
    """Return a run in a folder of its own, its choices written down. Raises Refused, with nothing written."""
    refuse_occupied(run)
    chosen = precision(config.precision, config.target or None, config.kahan_actor)
    where = environment(config)
    device = choose_device(config.device)
    # Resolved once, so that resuming elsewhere is refused instead of being different.
    robot = str(Path(config.robot).resolve()) if config.robot.endswith(".toml") else config.robot
    config = msgspec.structs.replace(config, device=device.type, physics=where.physics, robot=robot)
    torch.set_num_threads(config.threads)
    path = probe(device, chosen.dtype)
    start = Start(where.contract, _name(path.compute), path.reason)
    create_run(run, config, start)
    return _assemble(run, config, start, where, report, fresh=True)


def existing_run(run: Path, config: Config | None, report: Callable[[Progress], None]) -> Run:
    """Return the run in `run` as its last checkpoint left it, with `config` in place of its own if given.

    Raises Refused when it is no run, was damaged, or its robot has changed since.
    """
    own, start = read_run(run)
    config = config or own
    where = environment(config)
    start.contract.check_fits(where.contract)
    return _assemble(run, config, start, where, report, fresh=False)


def _assemble(
    run: Path,
    config: Config,
    start: Start,
    where: Environment,
    report: Callable[[Progress], None],
    *,
    fresh: bool,
) -> Run:
    torch.set_num_threads(config.threads)
    chosen = precision(config.precision, config.target or None, config.kahan_actor)
    interface = _interface(start.contract)
    obs_dim, action_dim = len(interface.obs_names), len(interface.action_names)
    path = MatmulPath(chosen.dtype, getattr(torch, start.compute), start.reason)
    agent = Agent(obs_dim, action_dim, config.agent, chosen, path, choose_device(config.device), config.seed)
    folder = run / REPLAY
    folder.mkdir(exist_ok=True)
    replay = Replay(
        config.replay_capacity,
        obs_dim,
        action_dim,
        chosen.replay_dtype,
        folder / "transitions.map",
        interface.obs_names,
        interface.action_names,
    )
    trainer = Trainer(run, config, interface, where.make(), where.make(), agent, replay, report)
    return Run(trainer, config, start, where, 0 if fresh else trainer.resume())


def _interface(contract: Contract) -> Interface:
    observed, driven = contract.observation, contract.action
    lower = np.array([channel.lower for channel in driven], np.float32)
    upper = np.array([channel.upper for channel in driven], np.float32)
    return Interface(
        obs_names=[channel.name for channel in observed],
        action_names=[channel.name for channel in driven],
        normalizer=Normalizer(
            np.array([channel.mean for channel in observed], np.float32),
            np.array([channel.scale for channel in observed], np.float32),
        ),
        action_offset=((lower + upper) / 2).astype(np.float32),
        action_scale=((upper - lower) / 2).astype(np.float32),
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
