"""The training loop of one process: act, store, update, evaluate, save.

The hard idea is exact resumption. Everything that decides what comes next is in a checkpoint, an environment's
episode is determined by its seed alone, and a clean stop waits for the episode's end; so a run that was stopped and
resumed equals one that was not, bit for bit, on a CPU. What is in the replay's own file is not saved again. Saves by
the clock may fall into an episode: they are for a kill, after which the episode is lost anyway.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from edge_sac.agent import Agent
from edge_sac.checkpoint import checkpoint_steps, load_checkpoint, save_checkpoint
from edge_sac.config import Config
from edge_sac.cuda_graph import recorder_for
from edge_sac.engine import Engine
from edge_sac.errors import CheckpointError, NonFinite, Refused, ReplayError
from edge_sac.evaluation import Summary, finite_obs, finite_reward, run_episodes, summarise
from edge_sac.interface import Interface, Vector
from edge_sac.metrics import MetricsLog
from edge_sac.policy import ActingPolicy
from edge_sac.replay import Replay
from edge_sac.run_state import Counters, Progress, Recovery, Stop
from edge_sac.seeding import SELECTION, TRAINING, episode_seed, generators, restore
from edge_sac.working_copy import sampler_for, source_for

LOG_STEPS = 500
"""Steps between two rows of metrics, which are the only moments the host looks at the learner's tensors."""
RECORDED = 256
"""Observations from the replay in each checkpoint, for the exported policy to be checked on."""
OVERTIME_STEPS = 2_000
"""How long past its last step a run waits for the episode to end before cutting it."""


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
        hidden = tuple(config.agent.hidden)
        self.policy = ActingPolicy(agent.obs_dim, agent.action_dim, hidden, interface.obs_names)
        self.policy.publish(self.best_weights)
        self.metrics = MetricsLog(run)
        self.sampler = sampler_for(agent, replay, config)
        self._random_rng, self._noise_rng, self._replay_rng = generators(config.seed, 3)
        source, self.drawing = source_for(agent, replay, self.sampler, self._replay_rng, config)
        """Where batches are drawn, or empty where there is no choice."""
        self.engine = Engine(agent, source, recorder_for(agent.device, agent.generator))
        self.saved: int | None = None
        """Step of the last checkpoint this process wrote."""
        self._halvings = 0
        self._saved_at = self._started = time.monotonic()
        self._cpu_started = time.process_time()
        self._timed = (self._started, 0, 0)

    def train(self, stop: Stop) -> bool:
        """Train until the configured step or a stop; save; return whether the run is finished.

        Whatever the environment or the update raises is raised again once everything is saved; NonFinite is
        raised for a NaN, and for a learner whose steps are all skipped.
        """
        now = time.monotonic()
        self._started = now - self.at.wall_s
        self._cpu_started = time.process_time() - self.at.cpu_s
        self._timed = (now, self.at.step, self.agent.updates)
        if self.at.step == 0:
            self.save()
        try:
            if self.at.step >= self.at.next_eval:
                # A stop cut this evaluation short; the next episode must not come before it.
                self._between_episodes(stop)
            while self.at.step < self.config.steps and not stop.requested:
                self._train_episode(stop)
                self._between_episodes(stop)
            finished = self.at.step >= self.config.steps
            if finished and self.at.step % LOG_STEPS:
                self._log()
        except CheckpointError:
            raise
        except Exception as error:
            self.replay.cut()
            self._save_after(error)
            raise
        self.save()
        return finished

    def _save_after(self, error: Exception) -> None:
        try:
            self.save()
        except CheckpointError as unsaved:
            raise CheckpointError(f"{error}; and nothing could be saved: {unsaved}") from error

    def _train_episode(self, stop: Stop) -> None:
        seed = episode_seed(self.config.seed, TRAINING, self.at.episode)
        self.at.episode += 1
        raw, _ = self.env.reset(seed=seed)
        obs = self._finite(raw)
        total, last_step = 0.0, self.config.steps + OVERTIME_STEPS
        while True:
            action, chosen = self._choose(obs)
            raw, reward, terminated, truncated, _ = self.env.step(action)
            reward = finite_reward(reward, f"step {self.at.step}")
            before, obs = obs, self._finite(raw)
            seen = self.interface.normalizer
            ended = bool(terminated), bool(truncated)
            self.replay.add(seen(before), chosen, reward, *ended, seen(obs), self.interface.dt)
            self.at.step += 1
            total += reward
            self._learn()
            if terminated or truncated:
                break
            if stop.urgent or self.at.step >= last_step:
                self.replay.cut()
                break
            self._log_when_due()
            if self._save_is_due():
                self.save()
        self.at.returns.append(total)

    def _finite(self, obs: Any) -> Vector:
        return finite_obs(obs, self.interface.obs_names, f"step {self.at.step}")

    def _choose(self, obs: Vector) -> tuple[Vector, Vector]:
        """Return the action [A] in the environment's units, and as stored, in [-1, 1]."""
        width = len(self.interface.action_names)
        if self.at.step < self.config.random_steps:
            chosen = self._random_rng.uniform(-1, 1, width).astype(np.float32)
            return self.interface.in_units(chosen), chosen
        action = self._act(obs, self._noise_rng.standard_normal(width, dtype=np.float32))
        return action, self.interface.stored(action)

    def _act(self, obs: Vector, noise: Vector | None = None) -> Vector:
        return self.interface.allowed(self.policy.act(obs, noise))

    def _learn(self) -> None:
        """Make the updates that are due, and let the policy act with the result."""
        if self.at.step < self.config.random_steps:
            return
        self.at.owed += self.config.updates_per_step
        due = int(self.at.owed)
        self.at.owed -= due
        self.engine.run(due)
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

    def _between_episodes(self, stop: Stop) -> None:
        evaluated = self.at.step >= self.at.next_eval and self._evaluate(stop)
        self._log_when_due()
        if evaluated or self._save_is_due():
            self.save()

    def _save_is_due(self) -> bool:
        return time.monotonic() - self._saved_at > self.config.checkpoint_seconds

    def _evaluate(self, stop: Stop) -> bool:
        """Judge the policy and keep it if it is the best; return whether that came to an end before an urgent stop."""
        every = self.config.eval_every
        seeds = [episode_seed(self.config.seed, SELECTION, i) for i in range(self.config.eval_episodes)]
        names = self.interface.obs_names
        episodes = run_episodes(self.eval_env, self._act, seeds, names, stopped=lambda: stop.urgent)
        if len(episodes) < len(seeds):
            return False
        self.at.next_eval = (self.at.step // every + 1) * every
        summary = summarise(episodes)
        self.at.success_rate = summary.success_rate
        self.metrics.write("eval", self._evaluation_row(summary))
        if self.at.best_step < 0 or summary.merit > self.at.best_merit:
            self.at.best_step, self.at.best_merit = self.at.step, summary.merit
            self.best_weights = {name: value.copy() for name, value in self._weights().items()}
        return True

    def _evaluation_row(self, summary: Summary) -> dict[str, float]:
        row = {"step": self.at.step, "return_mean": summary.return_mean, "wall_s": self._wall()}
        if summary.success_rate is not None:
            row["success_rate"] = summary.success_rate
        if summary.success_fraction is not None:
            row["success_fraction"] = summary.success_fraction
        return row

    def _wall(self) -> float:
        return time.monotonic() - self._started

    def _log_when_due(self) -> None:
        if self.at.step % LOG_STEPS == 0:
            self._log()
            self.at.returns.clear()
            self.at.logged_updates = self.agent.updates
            self._timed = (time.monotonic(), self.at.step, self.agent.updates)

    def _log(self) -> None:
        """Read the learner's tensors, write a row, report, and raise NonFinite when the learner is dead.

        A row is of the window of LOG_STEPS steps it falls into, whichever processes made them; speeds are of this one.
        """
        reading = self.agent.read_metrics()
        then, step_then, updates_then = self._timed
        seconds = max(time.monotonic() - then, 1e-9)
        speed = (self.agent.updates - updates_then) / seconds
        ratio = (self.agent.updates - self.at.logged_updates) / ((self.at.step - 1) % LOG_STEPS + 1)
        mean_return = float(np.mean(self.at.returns)) if self.at.returns else float("nan")
        row = {
            "step": self.at.step,
            "episode_return": mean_return,
            "updates": self.agent.updates,
            "updates_per_s": speed,
            "utd_ratio": ratio,
            "wall_s": self._wall(),
        }
        self.metrics.write("train", row | reading.row)
        left = (self.config.steps - self.at.step) * seconds / max(self.at.step - step_then, 1)
        self.report(
            Progress(
                self.at.step,
                self.config.steps,
                mean_return,
                self.at.success_rate,
                reading.row["alpha"],
                speed,
                ratio,
                max(left, 0.0),
                self._new_event(reading.halvings, reading.culprit) or self.engine.news(),
            )
        )
        if reading.dead:
            raise NonFinite(
                f"step {self.at.step}: the {reading.dead} learner skipped every step lately (its gradients are not "
                f"finite at loss scale {reading.row[f'{reading.dead}_scale']:g}); lower {reading.dead}_lr in the run's "
                "config.toml and resume, or train anew with smaller rewards"
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
            recorder = self.replay.sampler(RECORDED, gamma=self.config.agent.gamma)
            seen = recorder.draw(np.random.default_rng(self.at.step)).obs
            normalizer = self.interface.normalizer
            tensors["recorded"] = torch.from_numpy(seen * normalizer.scale + normalizer.mean)
        ranks, priority = self.sampler.state()
        if priority is not None:
            tensors["sampler.priority"] = torch.from_numpy(priority)
        state = {
            "counters": asdict(self.at),
            "rng": [rng.bit_generator.state for rng in self._rngs()],
            "replay": self.replay.state(),
            "sampler": ranks,
        }
        self.replay.sync()
        save_checkpoint(self.run, self.at.step, tensors, state)
        self._saved_at, self.saved = time.monotonic(), self.at.step

    def resume(self) -> Recovery:
        """Take up the newest checkpoint; return how the replay stood to it.

        A run that was killed before its first step has neither, and begins. Raises CheckpointError when the checkpoint
        is damaged, another agent's, or newer than the replay.
        """
        added = self.replay.added_since({"written": 0, "added": 0})
        if added == 0 and not checkpoint_steps(self.run):
            return Recovery()
        step, tensors, state = load_checkpoint(self.run)
        recovery = self._compared(state["replay"], added)
        try:
            self.agent.restore(_under("agent.", tensors))
            self.best_weights = {name: value.numpy() for name, value in _under("best.", tensors).items()}
            counters = dict(state["counters"])
            counters["best_merit"] = tuple(counters["best_merit"])
            self.at = Counters(**counters)
            priority = tensors.get("sampler.priority")
            self.sampler.restore(state["sampler"], None if priority is None else priority.numpy())
            for rng, saved in zip(self._rngs(), state["rng"], strict=True):
                restore(rng, saved)
        except (KeyError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"the checkpoint at step {step} of {self.run} was made with another configuration ({error}); "
                "restore the run's own config.toml"
            ) from error
        try:
            self.metrics.truncate_after(self.at.step)
        except OSError as error:
            raise Refused(f"cannot write {self.run}: {error}; make it writable, with room, then resume") from error
        self.policy.publish(self._weights())
        self._halvings = self.agent.read_metrics().halvings
        return recovery

    def _compared(self, saved: dict[str, int], added: int) -> Recovery:
        """Return how the replay, of `added` transitions, stands to the state in the checkpoint."""
        if added == 0:
            return Recovery(missing=saved["added"])
        try:
            return Recovery(newer=self.replay.added_since(saved))
        except ReplayError as error:
            raise CheckpointError(
                f"{self.run}: {error}; put the run's own replay back, or delete the file to go on with an empty one"
            ) from error

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
