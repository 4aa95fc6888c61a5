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
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.console import Console
from torch import Tensor

from edge_sac import __version__
from edge_sac.agent import OPTIMISERS
from edge_sac.atomic import write_file
from edge_sac.checkpoint import checkpoint_steps, load_checkpoint
from edge_sac.commands.deliver import export_run
from edge_sac.commands.evaluate import judge
from edge_sac.commands.grids import GRIDS, STEP_S, Cell, Grid
from edge_sac.commands.memory_table import write_memory
from edge_sac.commands.results_cells import Result, read_cells
from edge_sac.commands.results_table import write_results
from edge_sac.config import dump_config
from edge_sac.errors import Refused
from edge_sac.metrics import read_metrics
from edge_sac.run_folder import CONFIG, REPLAY, read_run

WORK = Path("runs/reproduce")
EPISODES = 10
POLL_S = 2.0

PAGES = {"furuta": write_results, "memory": write_memory}


def reproduce(what: str, seeds: int | None, steps: int | None, jobs: int, cells: Path, console: Console) -> int:
    """Make the missing cells, `jobs` at a time, then the table; return the exit code."""
    grid = known_grid(what)
    wanted = grid.cells(seeds or grid.seeds, steps)
    missing = [cell for cell in wanted if not (cells / f"{cell.name}.json").exists()]
    costs = _cpu_seconds(missing, read_cells(cells, [cell.name for cell in wanted]))
    console.print(
        f"{len(wanted)} runs, {len(missing)} to make: about {sum(costs.values()) / 3600:.1f} core-hours, "
        f"{jobs} at a time"
    )
    failed = _make(missing, costs, WORK / what, jobs, cells, console)
    PAGES[what](cells, [cell.name for cell in wanted])
    console.print(f"{cells}.md and {cells}.png written")
    return 4 if failed else 0


def known_grid(what: str) -> Grid:
    """Return a table's grid; raises Refused, naming those there are."""
    if what not in GRIDS:
        raise Refused(f"there is no table {what!r}; those there are: {', '.join(GRIDS)}")
    return GRIDS[what]


def _cpu_seconds(missing: Sequence[Cell], found: Sequence[Result]) -> dict[str, float]:
    """Return what each missing cell will take, by the finished cells of its environment where there are any."""
    costs = {}
    for cell in missing:
        like = [one["cpu_s"] / one["steps"] for one in found if one["config"]["env"] == cell.config.env]
        costs[cell.name] = cell.config.steps * (float(np.median(like)) if like else STEP_S)
    return costs


def _make(
    missing: Sequence[Cell], costs: Mapping[str, float], work: Path, jobs: int, cells: Path, console: Console
) -> list[str]:
    """Run the cells side by side; return the names of those that failed."""
    waiting, failed = list(missing), []
    running: dict[str, tuple[Cell, subprocess.Popen[bytes]]] = {}
    started, done, total = time.monotonic(), 0.0, sum(costs.values())
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                cell = waiting.pop(0)
                running[cell.name] = (cell, _start(cell, work))
            time.sleep(POLL_S)
            for name, (cell, process) in list(running.items()):
                if process.poll() is None:
                    continue
                del running[name]
                done += costs[name]
                left = (time.monotonic() - started) * (total - done) / done
                if process.returncode != 0:
                    failed.append(name)
                    console.print(f"{name} failed with exit code {process.returncode}: {work / name}.log")
                    continue
                result = _record(cell, work / name)
                path = cells / f"{name}.json"
                path.parent.mkdir(parents=True, exist_ok=True)
                write_file(path, (json.dumps(result, indent=1) + "\n").encode())
                made = len(missing) - len(waiting) - len(running)
                console.print(f"{name} done, {made} of {len(missing)}, about {left / 60:.0f} min left")
    finally:
        for _, process in running.values():
            process.terminate()
        for _, process in running.values():
            process.wait(timeout=60)
    return failed


def _start(cell: Cell, work: Path) -> subprocess.Popen[bytes]:
    run = work / cell.name
    run.parent.mkdir(parents=True, exist_ok=True)
    if (run / CONFIG).exists():
        command = ["resume", str(run)]
    else:
        settings = run.with_suffix(".toml")
        # What a probe chooses depends on what else runs, and here several cells run at once.
        config = msgspec.structs.replace(cell.config, threads=1)
        write_file(settings, dump_config(config).encode())
        command = ["train", "--config", str(settings), "--out", str(run)]
    with run.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "edge_sac", *command], stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )


def _record(cell: Cell, run: Path) -> Result:
    """Return the cell of a finished run, its best and its last policy judged."""
    config, start = read_run(run)
    result: Result = {"variant": cell.variant, "seed": config.seed, "config": msgspec.to_builtins(config)}
    for which in ("best", "last"):
        policy = run / f"{which}.onnx"
        export_run(run, policy, last=which == "last")
        judgement = judge(policy, EPISODES, config)
        result[which] = {
            "success_fraction": judgement.summary.success_fraction,
            "success_rate": judgement.summary.success_rate,
            "return_mean": judgement.summary.return_mean,
            "returns": [episode.episode_return for episode in judgement.episodes],
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
        "replay_bytes": sum(file.stat().st_size for file in (run / REPLAY).iterdir()),
        "physics": config.physics,
        "matmul": start.reason,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "commit": _commit(),
    }
    return result


def _commit() -> str:
    """Return the commit of the checkout that the table is made in, marked where it was changed; else the version."""
    try:
        done = subprocess.run(
            ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return f"none, version {__version__}"
    return done.stdout.strip()


def _alive(run: Path, after: Mapping[str, Tensor]) -> dict[str, float]:
    """Return, of each network, the steps skipped in a row at the end and the share of weights that still move.

    Moving is from the checkpoint before `after`, the newest: at most an evaluation interval apart.
    """
    _, before, _ = load_checkpoint(run, checkpoint_steps(run)[-2])
    found = {}
    skips = after["agent.coefficients.loss_scale.skip_streak"].tolist()
    for name, skipped in zip(OPTIMISERS[:2], skips, strict=False):
        changed = before[f"agent.{name}.theta"] != after[f"agent.{name}.theta"]
        nonzero = after[f"agent.{name}.theta"] != 0
        found[f"{name}_moving"] = float(changed.sum() / nonzero.sum())
        found[f"{name}_skip_streak"] = float(skipped)
    return found


def _finite(values: Iterable[Any]) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]
