"""`edge-sac reproduce`: a committed table of results, remade run by run from one command.

Each run is a cell: a variant and a seed. A finished cell is one JSON file that is never made twice; an unfinished
one is a run folder that is resumed. The table and the figure are drawn from the cells alone.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from torch import Tensor

from edge_sac.atomic import write_file
from edge_sac.checkpoint import checkpoint_steps, load_checkpoint
from edge_sac.commands.deliver import export_run
from edge_sac.commands.evaluate import judge
from edge_sac.commands.results_table import write_results
from edge_sac.config import Config, dump_config
from edge_sac.errors import Refused
from edge_sac.metrics import read_metrics
from edge_sac.run_folder import CONFIG, read_run

WORK = Path("runs/reproduce")
EPISODES = 10
LONG_STEPS = 100_000
POLL_S = 2.0

VARIANTS: dict[str, dict[str, Any]] = {
    "fp16": {},
    "fp32": {"precision": "fp32"},
    "fp16-target-kahan": {"target": "kahan"},
    "fp16-plain-actor": {"kahan_actor": False},
}
"""What differs from the default configuration."""
LONG = "fp16-long"


@dataclass(frozen=True)
class Cell:
    """One run of the grid."""

    variant: str
    config: Config

    @property
    def name(self) -> str:
        """Return the cell's name, of its file and its run folder."""
        return f"{self.variant}-seed{self.config.seed}"


def grid(seeds: int, steps: int | None) -> list[Cell]:
    """Return the cells, those that matter most first: fp16 beside fp32, one long run, then the other variants."""
    base: dict[str, Any] = {} if steps is None else {"steps": steps}

    def side_by_side(*variants: str) -> list[Cell]:
        return [
            Cell(variant, Config(seed=seed, **base, **VARIANTS[variant]))
            for seed in range(seeds)
            for variant in variants
        ]

    long = Cell(LONG, Config(seed=0, steps=steps or LONG_STEPS))
    return [*side_by_side("fp16", "fp32"), long, *side_by_side("fp16-target-kahan", "fp16-plain-actor")]


def reproduce(what: str, seeds: int, steps: int | None, jobs: int, cells: Path, console: Console) -> int:
    """Make the missing cells, `jobs` at a time, then the table; return the exit code."""
    if what != "furuta":
        raise Refused(f"there is no table {what!r}; the one there is: furuta")
    wanted = grid(seeds, steps)
    cells.mkdir(parents=True, exist_ok=True)
    missing = [cell for cell in wanted if not (cells / f"{cell.name}.json").exists()]
    total = sum(cell.config.steps for cell in missing)
    console.print(f"{len(wanted)} runs, {len(missing)} to make: {total} steps, {jobs} at a time")
    failed = _make(missing, jobs, cells, console)
    write_results(cells, [cell.name for cell in wanted])
    console.print(f"{cells}.md and {cells}.png written")
    return 4 if failed else 0


def _make(missing: Sequence[Cell], jobs: int, cells: Path, console: Console) -> list[str]:
    """Run the cells side by side; return the names of those that failed."""
    waiting, failed = list(missing), []
    running: dict[str, tuple[Cell, subprocess.Popen[bytes]]] = {}
    started, done, total = time.monotonic(), 0, sum(cell.config.steps for cell in missing)
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                cell = waiting.pop(0)
                running[cell.name] = (cell, _start(cell))
            time.sleep(POLL_S)
            for name, (cell, process) in list(running.items()):
                if process.poll() is None:
                    continue
                del running[name]
                done += cell.config.steps
                left = (time.monotonic() - started) * (total - done) / done
                if process.returncode != 0:
                    failed.append(name)
                    console.print(f"{name} failed with exit code {process.returncode}: {WORK / name}.log")
                    continue
                _record(cell, cells)
                console.print(f"{name} done, about {left / 60:.0f} min left")
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.wait(timeout=60)
    return failed


def _start(cell: Cell) -> subprocess.Popen[bytes]:
    run = WORK / cell.name
    run.parent.mkdir(parents=True, exist_ok=True)
    if (run / CONFIG).exists():
        command = ["resume", str(run)]
    else:
        settings = run.with_suffix(".toml")
        write_file(settings, dump_config(cell.config).encode())
        command = ["train", "--config", str(settings), "--out", str(run)]
    with run.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "edge_sac", *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


def _record(cell: Cell, cells: Path) -> None:
    """Judge the finished run's best and last policy and write its cell."""
    run = WORK / cell.name
    config, start = read_run(run)
    result: dict[str, Any] = {"variant": cell.variant, "seed": config.seed, "config": msgspec.to_builtins(config)}
    for which in ("best", "last"):
        policy = run / f"{which}.onnx"
        export_run(run, policy, last=which == "last")
        judgement = judge(policy, EPISODES, config)
        result[which] = {
            "success_fraction": judgement.summary.success_fraction,
            "success_rate": judgement.summary.success_rate,
            "return_mean": judgement.summary.return_mean,
        }
    metrics = read_metrics(run)
    evaluated, trained = metrics["kind"] == "eval", metrics["kind"] == "train"
    step, tensors, state = load_checkpoint(run)
    result |= {
        "steps": step,
        "best_step": state["counters"]["best_step"],
        "wall_s": round(float(state["counters"]["wall_s"]), 1),
        "cpu_s": round(float(state["counters"]["cpu_s"]), 1),
        "curve": {
            name: _finite(metrics[name][evaluated])
            for name in ("step", "success_fraction", "success_rate", "return_mean")
        },
        "learner": {
            name: _finite(metrics[name][trained][-1:])[0]
            for name in ("critic_scale", "skipped_critic", "skipped_actor", "skipped_alpha", "alpha", "updates")
        },
        "alive": _alive(run, tensors),
        "largest_critic_weight": float(tensors["agent.critic.theta"].float().abs().max()),
        "state_bytes": sum(t.nbytes for name, t in tensors.items() if name.startswith("agent.") and t.ndim),
        "physics": config.physics,
        "matmul": start.reason,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
    }
    write_file(cells / f"{cell.name}.json", (json.dumps(result, indent=1) + "\n").encode())


def _alive(run: Path, after: Mapping[str, Tensor]) -> dict[str, float]:
    """Return, of each network, the steps skipped in a row at the end and the share of weights that still move.

    Moving is from the checkpoint before `after`, the newest: at most an evaluation interval apart.
    """
    _, before, _ = load_checkpoint(run, checkpoint_steps(run)[-2])
    found = {}
    for name in ("critic", "actor"):
        changed = before[f"agent.{name}.theta"] != after[f"agent.{name}.theta"]
        nonzero = after[f"agent.{name}.theta"] != 0
        found[f"{name}_moving"] = float(changed.sum() / nonzero.sum())
        found[f"{name}_skip_streak"] = float(after[f"agent.{name}.loss_scale.skip_streak"])
    return found


def _finite(values: Iterable[Any]) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]
