"""`edge-sac bench update`: what one update costs in each precision, measured side by side."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from edge_sac.agent import Agent, Batch
from edge_sac.commands.json_file import write_json
from edge_sac.config import AgentConfig
from edge_sac.device import choose_device
from edge_sac.half_matmul import probe
from edge_sac.host_memory import keep_freed_memory
from edge_sac.precision import precision
from edge_sac.replay import Replay

OBS, ACTION = 17, 6
"""As a planar walker has; the size that published comparisons use."""
TRANSITIONS = 10_000


def bench_update(
    precisions: list[str],
    width: int,
    batch: int,
    rounds: int,
    seconds: float,
    threads: int,
    device: str,
    output: Path | None,
    console: Console,
) -> int:
    """Time updates from a filled replay, one precision after the other in each round; print medians and ratios.

    Ratios are within a round and then the median over rounds: what else runs on the machine hits both alike.
    """
    torch.set_num_threads(threads)
    keep_freed_memory()
    where = choose_device(device)
    learners = {name: _learner(name, width, batch, where) for name in precisions}
    times: dict[str, list[float]] = {name: [] for name in precisions}
    for _ in range(rounds):
        for name, (agent, replay) in learners.items():
            times[name].append(_seconds_per_update(agent, replay, batch, seconds))
    first = np.array(times[precisions[0]])
    rows = []
    for name, (agent, replay) in learners.items():
        taken = np.array(times[name])
        rows.append(
            {
                "precision": name,
                "ms_median": float(1e3 * np.median(taken)),
                "ms_best": float(1e3 * taken.min()),
                "ratio_median": float(np.median(taken / first)),
                "state_bytes": sum(t.nbytes for t in agent.state().values() if t.ndim),
                "bytes_per_transition": replay.bytes_per_transition,
            }
        )
        replay.close()
    _print(rows, f"width {width}, batch {batch}, {threads} thread(s), {where.type}, {rounds} rounds", console)
    if output is not None:
        record = {"width": width, "batch": batch, "threads": threads, "device": where.type, "rows": rows}
        write_json(output, record)
    return 0


def _learner(name: str, width: int, batch: int, device: torch.device) -> tuple[Agent, Replay]:
    chosen = precision(name)
    config = AgentConfig(hidden=(width, width), batch=batch)
    agent = Agent(OBS, ACTION, config, chosen, probe(device, chosen.dtype), device, seed=0)
    replay = Replay(TRANSITIONS, OBS, ACTION, chosen.storage)
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((TRANSITIONS + 1, OBS), dtype=np.float32)
    for step in range(TRANSITIONS):
        action = rng.uniform(-1, 1, ACTION).astype(np.float32)
        replay.add(obs[step], action, float(rng.normal()), False, False, obs[step + 1])
    return agent, replay


def _seconds_per_update(agent: Agent, replay: Replay, batch: int, seconds: float) -> float:
    """Return the median time of the updates that fit in `seconds`, sampling included."""
    rng = np.random.default_rng(1)
    sampler = replay.sampler(batch, gamma=agent.config.gamma, dtype=agent.precision.replay_dtype)
    for _ in range(10):
        agent.update(Batch.of(sampler.draw(rng), agent.device))
    taken: list[float] = []
    began = time.perf_counter()
    while len(taken) < 3 or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        agent.update(Batch.of(sampler.draw(rng), agent.device))
        if agent.device.type == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return float(np.median(taken))


def _print(rows: list[dict[str, Any]], title: str, console: Console) -> None:
    table = Table(title=title)
    for column in ("precision", "ms, median", "ms, best", "ratio", "learner, bytes", "bytes per transition"):
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(
            row["precision"],
            f"{row['ms_median']:.2f}",
            f"{row['ms_best']:.2f}",
            f"{row['ratio_median']:.3f}",
            str(row["state_bytes"]),
            str(row["bytes_per_transition"]),
        )
    console.print(table)
