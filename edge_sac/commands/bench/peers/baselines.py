"""What Stable-Baselines3 and SBX share: the first's environment spaces, replay and `train` / `predict` interface."""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium
import numpy as np

from edge_sac.commands.bench.candidate import Candidate, Stages, Work

CHUNK = 10_000
ENDS = 0.01


class Blank(gymnasium.Env[Any, Any]):
    """An environment that has the work's spaces and is never stepped."""

    def __init__(self, work: Work) -> None:
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (work.obs,), np.float32)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (work.action,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Return zeros."""
        super().reset(seed=seed, options=options)
        return np.zeros(self.observation_space.shape or (), np.float32), {}


def candidate(sac: Any, work: Work, stages: Stages, versions: dict[str, str], **options: Any) -> Candidate:
    """Return the learner that the class `sac` makes, on a full replay."""
    from stable_baselines3.common.logger import Logger

    model = sac(
        "MlpPolicy",
        Blank(work),
        buffer_size=work.transitions,
        batch_size=work.batch,
        policy_kwargs={"net_arch": list(work.hidden)},
        seed=0,
        **options,
    )
    model.set_logger(Logger(folder=None, output_formats=[]))
    stages.passed("learner")
    replay = model.replay_buffer
    _fill(replay, work)
    stages.passed("replay")
    rng = np.random.default_rng(1)
    obs = rng.standard_normal((1024, work.obs), dtype=np.float32)
    actions = rng.uniform(-1, 1, (1024, 1, work.action)).astype(np.float32)
    reward, done = np.ones(1, np.float32), np.zeros(1, np.float32)
    turn = itertools.cycle(range(1023))

    def update() -> None:
        model.train(gradient_steps=1, batch_size=work.batch)

    def act() -> None:
        model.predict(obs[next(turn)], deterministic=True)

    def add() -> None:
        i = next(turn)
        replay.add(obs[i : i + 1], obs[i + 1 : i + 2], actions[i], reward, done, [{}])

    for _ in range(10):
        update()
    arrays = [value for value in vars(replay).values() if isinstance(value, np.ndarray)]
    facts = {
        "versions": versions,
        "stages": stages.resident,
        "bytes_per_transition": sum(array.nbytes for array in arrays) / replay.buffer_size,
    }
    operations = {"update": update, "act": act, "add": add, "sample": lambda: replay.sample(work.batch)}
    return Candidate(operations, facts)


def _fill(replay: Any, work: Work) -> None:
    """Fill the replay's own arrays: adding one by one would take the better part of a minute."""
    rng = np.random.default_rng(0)
    for first in range(0, replay.buffer_size, CHUNK):
        rows = slice(first, min(first + CHUNK, replay.buffer_size))
        count = rows.stop - rows.start
        replay.observations[rows, 0] = rng.standard_normal((count, work.obs), dtype=np.float32)
        replay.next_observations[rows, 0] = rng.standard_normal((count, work.obs), dtype=np.float32)
        replay.actions[rows, 0] = rng.uniform(-1, 1, (count, work.action))
        replay.rewards[rows, 0] = rng.standard_normal(count)
        replay.dones[rows, 0] = rng.random(count) < ENDS
        replay.timeouts[rows, 0] = 0.0
    replay.pos, replay.full = 0, True
