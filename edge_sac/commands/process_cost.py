"""What a training process holds besides its buffers, measured here and now: a process like it goes through its start.

Each stage does what a run does, at the smallest size, and what the process holds afterwards is the stage's cost; a
library's pages are read in at its first use, so a learner too small to count still shows what torch takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from edge_sac.config import AgentConfig, Config, dump_config, parse_config
from edge_sac.errors import EdgeSacError
from edge_sac.memory_available import available_memory, gpu_left, resident_memory

PATIENCE_S = 180.0
"""A cold import of torch from a memory card takes a minute."""
SMALL = AgentConfig(hidden=(256, 256), batch=256)
"""A learner large enough that its products take the libraries' usual ways; what its sizes make it hold is taken off."""
TRANSITIONS = 1_000
FIRST_UPDATES = "first updates"
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Cost:
    """What one stage of a process's start adds to what it holds."""

    stage: str
    bytes: int


@dataclass(frozen=True)
class ProcessCost:
    """What a process holds besides its buffers."""

    stages: tuple[Cost, ...]
    """While it trains."""
    report: int = 0
    """What drawing the report adds at its end, when the replay is closed."""
    gpu_left: int | None = None
    """What a GPU with memory of its own has left beside the context."""

    @property
    def bytes(self) -> int:
        """Return the sum."""
        return sum(stage.bytes for stage in self.stages)


def measure(config: Config, patience: float = PATIENCE_S) -> ProcessCost:
    """Return what the process of such a run holds; raises EdgeSacError when it fails or takes longer than `patience`.

    `config.device` is settled.
    """
    code = "from edge_sac.commands.process_cost import main; main()"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            input=dump_config(config),
            capture_output=True,
            text=True,
            timeout=patience,
            env=dict(os.environ) | dict.fromkeys(THREADS, str(config.threads or 1)),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EdgeSacError(f"measuring a process took longer than {patience:g} s; stopped") from error
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise EdgeSacError(f"a process to measure ended with exit code {done.returncode}: {last}")
    # Libraries may print too; the answer is the last line.
    answer = json.loads(done.stdout.splitlines()[-1])
    return ProcessCost(tuple(Cost(**stage) for stage in answer["stages"]), answer["report"], answer["gpu_left"])


def main() -> None:
    """Go through the stages for the configuration on standard input; print one line of JSON."""
    config = parse_config(sys.stdin.read(), "standard input")
    stages = [{"stage": "interpreter", "bytes": resident_memory()}]
    kept: list[Any] = []
    for stage, enter in _stages(config):
        resident, left = resident_memory(), available_memory().bytes
        kept.append(enter(config))
        grown = resident_memory() - resident
        if stage == "CUDA" and gpu_left() is None:
            # The GPU takes from the same memory, and what it takes is no part of the process's.
            grown = max(grown, left - available_memory().bytes)
        if stage == FIRST_UPDATES:
            grown -= _planned(config)
        stages.append({"stage": stage, "bytes": max(0, grown)})
    resident = resident_memory()
    kept.append(_report())
    answer = {
        "stages": stages,
        "report": max(0, resident_memory() - resident),
        "gpu_left": gpu_left() if config.device == "cuda" else None,
    }
    print(json.dumps(answer))


def _stages(config: Config) -> Iterator[tuple[str, Callable[[Config], Any]]]:
    yield "import torch", _import_torch
    if config.device == "cuda":
        yield "CUDA", _cuda
    yield "other libraries", _import_program
    yield "environment, twice", _environments
    yield "policy's session", _policy
    yield FIRST_UPDATES, _updates


def _import_torch(config: Config) -> Any:
    import torch

    torch.set_num_threads(config.threads or 1)
    return torch


def _cuda(config: Config) -> Any:  # noqa: ARG001
    import torch

    one = torch.ones(64, 64, dtype=torch.float16, device="cuda")
    torch.cuda.synchronize()
    return one @ one


def _import_program(config: Config) -> Any:  # noqa: ARG001
    from edge_sac import cli
    from edge_sac.commands import train

    return cli, train


def _environments(config: Config) -> Any:
    from edge_sac.commands.environment import environment

    where = environment(config)
    made = [where.make(), where.make()]
    for env in made:
        env.reset(seed=0)
        env.step(env.action_space.sample())
    return made


def _policy(config: Config) -> Any:  # noqa: ARG001
    import numpy as np

    from edge_sac.policy import ActingPolicy
    from edge_sac.policy_weights import weight_shapes

    policy = ActingPolicy(1, 1, (1,))
    policy.publish({name: np.ones(shape, np.float32) for name, shape in weight_shapes(1, 1, (1,)).items()})
    policy.act([0.0])
    return policy


def _updates(config: Config) -> Any:
    """Build a small run's learner and replay, let it update, read its metrics and be saved."""
    import tempfile

    import numpy as np
    import torch

    from edge_sac.agent import Agent, Batch
    from edge_sac.checkpoint import save_checkpoint
    from edge_sac.half_matmul import probe
    from edge_sac.host_memory import keep_freed_memory
    from edge_sac.metrics import MetricsLog
    from edge_sac.precision import precision_of
    from edge_sac.replay import Replay

    keep_freed_memory()
    device, chosen = torch.device(config.device), precision_of(config)
    agent = Agent(1, 1, SMALL, chosen, probe(device, chosen.dtype), device, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        replay = Replay(TRANSITIONS, 1, 1, config.storage or chosen.storage, Path(folder) / "transitions.map")
        for step in range(10):
            replay.add([step / 10], [0.0], 0.0, False, False, [(step + 1) / 10])
        sampler = replay.sampler(SMALL.batch, gamma=SMALL.gamma, dtype=chosen.replay_dtype)
        for _ in range(4):
            agent.update(Batch.of(sampler.draw(np.random.default_rng(0)), device))
        metrics = MetricsLog(Path(folder))
        metrics.write("train", {"step": 0.0} | agent.read_metrics().row)
        metrics.close()
        save_checkpoint(Path(folder), 0, agent.state(), {})
        replay.close()
    return agent


def _report() -> Any:
    """Draw the report of a run of two rows."""
    import tempfile

    from edge_sac.metrics import MetricsLog, read_metrics
    from edge_sac.plots import report_figure, save_figure

    with tempfile.TemporaryDirectory() as folder:
        log = MetricsLog(Path(folder))
        log.write("train", {"step": 1.0, "episode_return": 0.0})
        log.write("eval", {"step": 1.0, "return_mean": 0.0})
        log.close()
        figure = report_figure(read_metrics(Path(folder)))
        save_figure(figure, Path(folder) / "report.png")
    return figure


def _planned(config: Config) -> int:
    """Return what `_updates` holds by its sizes, which is no part of the process's own cost."""
    import torch

    from edge_sac.half_matmul import probe
    from edge_sac.plan import Sizes, plan_of
    from edge_sac.precision import precision_of

    compute = probe(torch.device(config.device), precision_of(config).dtype).compute
    small = msgspec.structs.replace(config, agent=SMALL, replay_capacity=TRANSITIONS)
    return plan_of(small, Sizes(1, 1, compute)).peak(on_gpu=False)
