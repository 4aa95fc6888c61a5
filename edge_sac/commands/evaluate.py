"""`edge-sac eval`: an exported policy, or a run's, driven through fresh episodes and judged."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from edge_sac.commands.environment import environment
from edge_sac.commands.json_file import write_json
from edge_sac.config import Config, dump_config, parse_config
from edge_sac.errors import Refused
from edge_sac.evaluation import Episode, Summary, run_episodes, summarise
from edge_sac.policy import Policy
from edge_sac.run_folder import POLICY, is_run, read_run
from edge_sac.seeding import JUDGEMENT, episode_seed


@dataclass(frozen=True)
class Judgement:
    """A policy's episodes and their means."""

    policy: Path
    environment: str
    summary: Summary
    episodes: list[Episode]

    def line(self) -> str:
        """Return the means as a phrase."""
        parts = [f"mean return {self.summary.return_mean:.1f} over {self.summary.episodes} fresh episodes"]
        if self.summary.success_rate is not None:
            parts.append(f"success in {100 * self.summary.success_rate:.0f} %")
        if self.summary.success_fraction is not None:
            parts.append(f"goal held {100 * self.summary.success_fraction:.1f} % of the judged time")
        return ", ".join(parts)

    def record(self) -> dict[str, Any]:
        """Return what is written as JSON: `success_rate`, `success_fraction`, `return_mean` and each episode."""
        return {
            "policy": str(self.policy),
            "environment": self.environment,
            **asdict(self.summary),
            "per_episode": [asdict(episode) for episode in self.episodes],
        }


def judge(
    path: Path,
    episodes: int,
    config: Config | None = None,
    seed: int = 0,
    *,
    robot: str | None = None,
    physics: str | None = None,
) -> Judgement:
    """Return how the policy in a file does, without noise, on `episodes` episodes no training run has seen.

    `config` says where; without one it is what the policy was trained for, and `robot` and `physics` change that.
    Raises PolicyError when the policy is damaged or does not fit, NonFinite for a bad observation.
    """
    policy = Policy.load(path)
    where = environment(_overridden(config or config_for(policy), robot, physics))
    policy.contract.check_fits(where.contract)
    env = where.make()
    low = np.array([channel.lower for channel in policy.contract.action], np.float32)
    high = np.array([channel.upper for channel in policy.contract.action], np.float32)

    def act(obs: NDArray[Any]) -> NDArray[np.float32]:
        return np.clip(policy.act(obs), low, high)

    try:
        seeds = [episode_seed(seed, JUDGEMENT, index) for index in range(episodes)]
        done = run_episodes(env, act, seeds, [channel.name for channel in policy.contract.observation])
    finally:
        env.close()
    return Judgement(path, where.description, summarise(done), done)


def config_for(policy: Policy) -> Config:
    """Return a configuration of the environment a policy was trained for, as its contract names it."""
    name = policy.contract.robot
    return Config(robot=name) if policy.contract.kind == "robot" else Config(env=name)


def evaluate(
    where: Path,
    robot: str | None,
    physics: str | None,
    episodes: int,
    seed: int,
    output: Path | None,
    console: Console,
) -> int:
    """Judge a policy file, or the policy of a run folder; print a table, write JSON; return the exit code."""
    if output is not None and (output.is_dir() or not output.parent.is_dir()):
        raise Refused(f"cannot write {output}; give a file name in a folder that exists")
    config = None
    if where.is_dir():
        config, path = read_run(where)[0], where / POLICY
        if not path.exists():
            raise Refused(f"{where} has no {POLICY} yet; write it with: edge-sac export {where}")
    elif where.is_file():
        path = where
        if is_run(where.parent):
            config = read_run(where.parent)[0]
    else:
        raise Refused(f"{where} does not exist; give a run folder or a policy file")
    judgement = judge(path, episodes, config, seed, robot=robot, physics=physics)
    console.print(f"{judgement.environment}; policy {path}")
    for index, episode in enumerate(judgement.episodes):
        held = "" if episode.success_fraction is None else f"  goal held {100 * episode.success_fraction:5.1f} %"
        console.print(f"episode {index:3d}  return {episode.episode_return:8.1f}  steps {episode.length:5d}{held}")
    console.print(judgement.line())
    if output is not None:
        write_json(output, judgement.record())
    return 0


def _overridden(config: Config, robot: str | None, physics: str | None) -> Config:
    if physics is not None and robot is None and config.env:
        raise Refused(f"--physics {physics} is of a robot's twin; this policy is for the environment {config.env}")
    changes: dict[str, Any] = {"robot": robot, "env": ""} if robot else {}
    changes |= {"physics": physics} if physics else {}
    return parse_config(dump_config(config), "command line", changes)
