"""Putting a run's parts together: environment, learner, replay and records."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import torch

from edge_sac.agent import Agent
from edge_sac.commands.environment import Environment, calibrated, environment
from edge_sac.commands.memory_answer import answered
from edge_sac.config import Config
from edge_sac.contract import Contract
from edge_sac.device import choose_device
from edge_sac.errors import Refused
from edge_sac.half_matmul import MatmulPath, probe
from edge_sac.host_memory import keep_freed_memory
from edge_sac.interface import Interface
from edge_sac.memory_fit import check_fits
from edge_sac.normalizer import Normalizer
from edge_sac.plan import Sizes
from edge_sac.precision import Precision, precision_of
from edge_sac.replay import Replay
from edge_sac.run_folder import REPLAY, Start, new_folder, read_run, refuse_occupied
from edge_sac.run_state import Progress, Recovery
from edge_sac.threads import Threads, probe_threads
from edge_sac.trainer import Trainer


class Run(NamedTuple):
    """A run that is ready to train."""

    trainer: Trainer
    config: Config
    start: Start
    environment: Environment
    recovery: Recovery


def new_run(run: Path, config: Config, report: Callable[[Progress], None]) -> Run:
    """Return a run in a folder of its own, its choices written down. Raises Refused, with nothing written."""
    refuse_occupied(run)
    chosen = precision_of(config)
    where = calibrated(environment(config), config.seed)
    device = choose_device(config.device)
    # Resolved once, so that resuming elsewhere is refused instead of being different.
    robot = str(Path(config.robot).resolve()) if config.robot.endswith(".toml") else config.robot
    config = msgspec.structs.replace(config, device=device.type, physics=where.physics, robot=robot)
    torch.set_num_threads(1)
    with answered(config, where.contract):
        path = probe(device, chosen.dtype)
        threads = _threads(config, where.contract, chosen, path)
    start = Start(where.contract, _name(path.compute), path.reason, where.definition, threads.count, threads.reason)
    with new_folder(run, config, start), answered(config, where.contract):
        return Run(_trainer(run, config, start, where, report), config, start, where, Recovery())


def existing_run(run: Path, config: Config | None, report: Callable[[Progress], None]) -> Run:
    """Return the run in `run` as its last checkpoint left it, with `config` in place of its own if given.

    Raises Refused when it is no run, was damaged, or its robot has changed since.
    """
    own, start = read_run(run)
    config = config or own
    where = environment(config)
    start.contract.check_fits(where.contract)
    if start.definition != where.definition:
        raise Refused(
            f"{run}: the robot's description or its asset is no longer what the run began with ({config.robot}: hash "
            f"{where.definition[:12]}, the run's {start.definition[:12]}); put it back, or start a new run"
        )
    with answered(config, start.contract):
        trainer = _trainer(run, config, start, where, report)
        try:
            return Run(trainer, config, start, where, trainer.resume())
        except BaseException:
            trainer.close()
            raise


def _trainer(
    run: Path, config: Config, start: Start, where: Environment, report: Callable[[Progress], None]
) -> Trainer:
    torch.set_num_threads(config.threads or start.threads)
    keep_freed_memory()
    chosen = precision_of(config)
    interface = _interface(start.contract)
    obs_dim, action_dim = len(interface.obs_names), len(interface.action_names)
    path = MatmulPath(chosen.dtype, getattr(torch, start.compute), start.reason)
    device = choose_device(config.device)
    check_fits(msgspec.structs.replace(config, device=device.type), Sizes(obs_dim, action_dim, path.compute))
    agent = Agent(obs_dim, action_dim, config.agent, chosen, path, device, config.seed)
    folder = run / REPLAY
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise Refused(f"{folder} cannot be made: {error.strerror}; make {run} writable") from error
    replay = Replay(
        config.replay_capacity,
        obs_dim,
        action_dim,
        config.storage or chosen.storage,
        folder / "transitions.map",
        interface.obs_names,
        interface.action_names,
    )
    try:
        return Trainer(run, config, interface, where.make(), where.make(), agent, replay, report)
    except BaseException:
        replay.close()
        raise


def _threads(config: Config, contract: Contract, chosen: Precision, path: MatmulPath) -> Threads:
    """Return the number of threads of a new run: the configured one, else what a probe says."""
    if config.threads:
        return Threads(config.threads, "as configured")
    if config.device != "cpu":
        return Threads(1, f"the updates are on {config.device}")
    return probe_threads(len(contract.observation), len(contract.action), config.agent, chosen, path)


def _interface(contract: Contract) -> Interface:
    observed, driven = contract.observation, contract.action
    return Interface(
        obs_names=[channel.name for channel in observed],
        action_names=[channel.name for channel in driven],
        normalizer=Normalizer(
            np.array([channel.mean for channel in observed], np.float32),
            np.array([channel.scale for channel in observed], np.float32),
        ),
        action_lower=np.array([channel.lower for channel in driven], np.float32),
        action_upper=np.array([channel.upper for channel in driven], np.float32),
        dt=1 / contract.control_hz if contract.control_hz else 0.0,
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
