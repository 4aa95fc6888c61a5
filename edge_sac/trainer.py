"""The training loop of one process: act, store, update, evaluate, save.

The hard idea is exact resumption. Everything that decides what comes next is in a checkpoint, an environment's
episode is determined by its seed alone, and a checkpoint is cut between two episodes; so a run that was stopped and
resumed equals one that was not, bit for bit, on a CPU. What is in the replay's own file is not saved again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from edge_sac.agent import Agent, Batch
from edge_sac.checkpoint import load_checkpoint, save_checkpoint
from edge_sac.config import Config
from edge_sac.errors import CheckpointError, NonFinite
from edge_sac.evaluation import Summary, require_finite, run_episodes, summarise
from edge_sac.metrics import MetricsLog
from edge_sac.normalizer import Normalizer
from edge_sac.policy import ActingPolicy
from edge_sac.replay import Replay
from edge_sac.seeding import SELECTION, TRAINING, episode_seed, generators, restore

Vector = NDArray[np.float32]

LOG_STEPS = 500
"""Steps between two rows of metrics, which are the only moments the host looks at the learner's tensors."""
RECORDED = 256
"""Observations from the replay in each checkpoint, for the exported policy to be checked on."""
OVERTIME_STEPS = 2_000
"""How long past its last step a run waits for the episode to end before cutting it."""


@dataclass(frozen=True)
class Interface:
    """What the learner knows of the environment: names, and the maps from and to its units."""

    obs_names: Sequence[str]
    action_names: Sequence[str]
    normalizer: Normalizer
    action_offset: Vector  # [A]
    action_scale: Vector  # [A]


class Stop(Protocol):
    """Whether the user wants the run to end."""

    @property
    def requested(self) -> bool:
        """True: end with the episode."""

    @property
    def urgent(self) -> bool:
        """True: end now, cutting the episode."""


@dataclass(frozen=True)
class Progress:
    """What a status line shows."""

    step: int
    steps: int
    episode_return: float
    success_rate: float | None
    alpha: float
    updates_per_s: float
    utd_ratio: float
    seconds_left: float
    message: str = ""


@dataclass
class Counters:
    """Where the run stands; saved in every checkpoint."""

    step: int = 0
    episode: int = 0
    owed: float = 0.0
    """Updates due and not yet made, below 1 between two steps."""
    next_eval: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    """Time trained and processor time used, over all resumes."""
    best_step: int = -1
    best_merit: tuple[float, float] = (0.0, 0.0)


class Trainer:
    """One run: its environment, agent, replay and records."""

    def __init__(
        self,
        run: Path,
        config: Config,
        interface: Interface,
        env: Any,
        eval_env: Any,
        agent: Agent,
        replay: Replay,
        report: Callable[[Progress], None],
    ) -> None:
        self.run, self.config, self.interface = run, config, interface
        self.env, self.eval_env, self.agent, self.replay, self.report = env, eval_env, agent, replay, report
        self.at = Counters(next_eval=config.eval_every)
        self.best_weights = self._weights()
        self.policy = ActingPolicy(agent.obs_dim, agent.action_dim, tuple(config.agent.hidden))
        self.policy.publish(self.best_weights)
        self.metrics = MetricsLog(run)
        self._random_rng, self._noise_rng, self._replay_rng = generators(config.seed, 3)
        self._returns: list[float] = []
        self._success_rate: float | None = None
        self._halvings = 0
        self._saved_at = self._logged_at = self._started = time.monotonic()
        self._cpu_started = time.process_time()
        self._logged_step = self._logged_updates = 0

    def train(self, stop: Stop) -> bool:
        """Train until the configured step or a stop; save; return whether the run is finished.

        Whatever the environment or the update raises is raised again once everything is saved; NonFinite is
        raised for a NaN, and for a learner whose steps are all skipped.
        """
        self._logged_at = time.monotonic()
        self._started = self._logged_at - self.at.wall_s
        self._cpu_started = time.process_time() - self.at.cpu_s
        self._logged_step, self._logged_updates = self.at.step, self.agent.updates
        if self.at.step == 0:
            self.save()
        try:
            while self.at.step < self.config.steps and not stop.requested:
                self._train_episode(stop)
                self._between_episodes()
        except Exception:
            self.replay.cut()
            self.at.episode += 1
            self.save()
            raise
        self.save()
        return self.at.step >= self.config.steps

    def _train_episode(self, stop: Stop) -> None:
        obs, _ = self.env.reset(seed=episode_seed(self.config.seed, TRAINING, self.at.episode))
        seen = self._normalised(obs)
        total, last_step = 0.0, self.config.steps + OVERTIME_STEPS
        while True:
            action, chosen = self._choose(obs)
            obs, reward, terminated, truncated, _ = self.env.step(action)
            if not np.isfinite(reward):
                raise NonFinite(f"step {self.at.step}: the reward is {reward}")
            before, seen = seen, self._normalised(obs)
            self.replay.add(before, chosen, float(reward), bool(terminated), bool(truncated), seen)
            self.at.step += 1
            total += float(reward)
            self._learn()
            if terminated or truncated:
                break
            if stop.urgent or self.at.step >= last_step:
                self.replay.cut()
                break
        self.at.episode += 1
        self._returns.append(total)

    def _normalised(self, obs: Vector) -> Vector:
        require_finite(obs, self.interface.obs_names, f"step {self.at.step}")
        return self.interface.normalizer(np.asarray(obs, dtype=np.float32))

    def _choose(self, obs: Vector) -> tuple[Vector, Vector]:
        """Return the action [A] in the environment's units, and as stored, in [-1, 1]."""
        offset, scale = self.interface.action_offset, self.interface.action_scale
        if self.at.step < self.config.random_steps:
            chosen = self._random_rng.uniform(-1, 1, len(scale)).astype(np.float32)
            return offset + scale * chosen, chosen
        noise = self._noise_rng.standard_normal(len(scale), dtype=np.float32)
        action = self.policy.act(np.asarray(obs, dtype=np.float32), noise)
        return action, np.clip((action - offset) / scale, -1, 1)

    def _learn(self) -> None:
        """Make the updates that are due, and let the policy act with the result."""
        if self.at.step < self.config.random_steps:
            return
        self.at.owed += self.config.updates_per_step
        due = int(self.at.owed)
        self.at.owed -= due
        for _ in range(due):
            drawn = self.replay.sample(self.config.agent.batch, self._replay_rng)
            self.agent.update(Batch.of(drawn, self.agent.device))
        if due:
            self.policy.publish(self._weights())

    def _weights(self) -> dict[str, Vector]:
        face = self.interface
        return self.agent.policy_weights() | {
            "obs_mean": face.normalizer.mean,
            "obs_scale": face.normalizer.scale,
            "action_offset": face.action_offset,
            "action_scale": face.action_scale,
        }

    def _between_episodes(self) -> None:
        if self.at.step >= self.at.next_eval:
            self._evaluate()
            self.save()
        elif time.monotonic() - self._saved_at > self.config.checkpoint_seconds:
            self.save()
        if self.at.step - self._logged_step >= LOG_STEPS or self.at.step >= self.config.steps:
            self._log()

    def _evaluate(self) -> None:
        every = self.config.eval_every
        self.at.next_eval = (self.at.step // every + 1) * every
        seeds = [episode_seed(self.config.seed, SELECTION, i) for i in range(self.config.eval_episodes)]
        episodes = run_episodes(self.eval_env, self.policy.act, seeds, self.interface.obs_names)
        summary = summarise(episodes)
        self._success_rate = summary.success_rate
        self.metrics.write("eval", self._evaluation_row(summary))
        if self.at.best_step < 0 or summary.merit > self.at.best_merit:
            self.at.best_step, self.at.best_merit = self.at.step, summary.merit
            self.best_weights = {name: value.copy() for name, value in self._weights().items()}

    def _evaluation_row(self, summary: Summary) -> dict[str, float]:
        row = {"step": self.at.step, "return_mean": summary.return_mean, "wall_s": self._wall()}
        if summary.success_rate is not None:
            row["success_rate"] = summary.success_rate
        if summary.success_fraction is not None:
            row["success_fraction"] = summary.success_fraction
        return row

    def _wall(self) -> float:
        return time.monotonic() - self._started

    def _log(self) -> None:
        """Read the learner's tensors, write a row, report, and raise NonFinite when the learner is dead."""
        reading = self.agent.read_metrics()
        now = time.monotonic()
        steps, updates = self.at.step - self._logged_step, self.agent.updates - self._logged_updates
        speed = updates / max(now - self._logged_at, 1e-9)
        ratio = updates / max(steps, 1)
        mean_return = float(np.mean(self._returns)) if self._returns else float("nan")
        row = {
            "step": self.at.step,
            "episode_return": mean_return,
            "updates": self.agent.updates,
            "updates_per_s": speed,
            "utd_ratio": ratio,
            "wall_s": self._wall(),
        }
        self.metrics.write("train", row | reading.row)
        seconds = (self.config.steps - self.at.step) * (now - self._logged_at) / max(steps, 1)
        self.report(
            Progress(
                self.at.step,
                self.config.steps,
                mean_return,
                self._success_rate,
                reading.row["alpha"],
                speed,
                ratio,
                max(seconds, 0.0),
                self._new_event(reading.halvings, reading.culprit),
            )
        )
        self._returns.clear()
        self._logged_at, self._logged_step, self._logged_updates = now, self.at.step, self.agent.updates
        if reading.dead:
            raise NonFinite(
                f"step {self.at.step}: the {reading.dead} learner skipped every step lately (its gradients are not "
                f"finite at loss scale {reading.row[f'{reading.dead}_scale']:g}); lower its learning rate"
            )

    def _new_event(self, halvings: int, culprit: str) -> str:
        """Return a line for a Kahan target that had to halve its scale since the last row."""
        if halvings == self._halvings:
            return ""
        self._halvings = halvings
        return f"critic weight {culprit} grew: the Kahan target's scale was halved, {halvings} times in all"

    def save(self) -> None:
        """Write a checkpoint of everything the replay's file does not hold."""
        self.at.wall_s, self.at.cpu_s = self._wall(), time.process_time() - self._cpu_started
        tensors = {f"agent.{name}": value for name, value in self.agent.state().items()}
        tensors |= {f"best.{name}": torch.from_numpy(value) for name, value in self.best_weights.items()}
        if len(self.replay):
            seen = self.replay.sample(RECORDED, np.random.default_rng(self.at.step)).obs.astype(np.float32)
            normalizer = self.interface.normalizer
            tensors["recorded"] = torch.from_numpy(seen * normalizer.scale + normalizer.mean)
        state = {
            "counters": asdict(self.at),
            "rng": [rng.bit_generator.state for rng in self._rngs()],
            "replay": self.replay.state(),
        }
        save_checkpoint(self.run, self.at.step, tensors, state)
        self._saved_at = time.monotonic()

    def resume(self) -> int:
        """Take up the newest checkpoint; return how many stored transitions are newer than it.

        None are after a clean stop. Raises CheckpointError when the checkpoint is damaged or another agent's.
        """
        step, tensors, state = load_checkpoint(self.run)
        try:
            self.agent.restore(_under("agent.", tensors))
            self.best_weights = {name: value.numpy() for name, value in _under("best.", tensors).items()}
            counters = dict(state["counters"])
            counters["best_merit"] = tuple(counters["best_merit"])
            self.at = Counters(**counters)
            for rng, saved in zip(self._rngs(), state["rng"], strict=True):
                restore(rng, saved)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the checkpoint at step {step} of {self.run} was made with another configuration ({error}); "
                "restore the run's own config.toml"
            ) from error
        self.metrics.truncate_after(self.at.step)
        self.policy.publish(self._weights())
        return self.replay.added_since(state["replay"])

    def _rngs(self) -> tuple[np.random.Generator, ...]:
        return self._random_rng, self._noise_rng, self._replay_rng

    def close(self) -> None:
        """Close what this run opened."""
        self.metrics.close()
        self.replay.close()
        self.env.close()
        self.eval_env.close()


def _under(prefix: str, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
