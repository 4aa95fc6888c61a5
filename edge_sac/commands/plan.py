"""`edge-sac plan`: what a run will hold, whether there is room for it, and what would fit where there is not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from rich.console import Console
from rich.table import Table

from edge_sac.byte_size import mebibytes
from edge_sac.commands.environment import environment
from edge_sac.commands.json_file import write_json
from edge_sac.commands.process_cost import ProcessCost, measure
from edge_sac.config import Config, load_config, parse_config
from edge_sac.contract import Contract
from edge_sac.device import choose_device
from edge_sac.errors import Refused
from edge_sac.half_matmul import probe
from edge_sac.memory_available import available_memory, resident_memory
from edge_sac.memory_fit import OWN_GPU, Room, largest_replay, refusal, savings
from edge_sac.plan import Plan, Sizes, plan_of
from edge_sac.precision import precision_of
from edge_sac.run_folder import read_run

RUNS = Path("runs")
WIDTH = 80


@dataclass(frozen=True)
class Question:
    """A run to be planned: its settings, its sizes, where its files go and how much of them is there already."""

    config: Config
    sizes: Sizes
    folder: Path
    written: int = 0


def plan(
    where: Path | None, overrides: Mapping[str, Any], budget: int | None, output: Path | None, console: Console
) -> int:
    """Print every buffer of a run and what its process holds besides; return 0 where it fits.

    Raises Refused, after all was printed and written, where it does not.
    """
    asked = question(where, overrides)
    planned = plan_of(asked.config, asked.sizes)
    cost = measure(asked.config)
    rooms = rooms_for(cost, budget, gpu=asked.config.device == "cuda")
    free = free_disk(asked.folder)
    _print_buffers(planned, console)
    _print_process(planned, cost, rooms, console)
    for line in _lines(asked, planned, rooms, free):
        console.print(line)
    problems = [refusal(asked.config, asked.sizes, rooms), _disk_refusal(asked, planned, free)]
    if output is not None:
        write_json(output, _record(asked, planned, cost, rooms, free))
    if any(problems):
        raise Refused("; ".join(filter(None, problems)))
    return 0


def question(where: Path | None, overrides: Mapping[str, Any]) -> Question:
    """Return what is asked of a TOML file, a run's folder or, without either, the defaults; raises Refused."""
    folder, contract, compute = RUNS, None, ""
    if where is not None and where.is_dir():
        config, start = read_run(where)
        folder, contract, compute = where, start.contract, start.compute
        if overrides:
            config = parse_config("", "command line", msgspec.to_builtins(config) | overrides)
            contract, compute = None, ""
    elif where is not None:
        config = load_config(where, overrides)
    else:
        config = parse_config("", "command line", overrides)
    device = choose_device(config.device)
    torch.set_num_threads(config.threads or 1)
    config = msgspec.structs.replace(config, device=device.type)
    return Question(
        config,
        sizes_of(contract or environment(config).contract, _dtype(compute) or probe_compute(config)),
        folder,
        _bytes_in(where) if folder is where and where is not None else 0,
    )


def sizes_of(contract: Contract, compute: torch.dtype) -> Sizes:
    """Return the sizes that a contract sets."""
    return Sizes(len(contract.observation), len(contract.action), compute)


def probe_compute(config: Config) -> torch.dtype:
    """Return the dtype in which this machine multiplies for the run."""
    return probe(torch.device(config.device), precision_of(config).dtype).compute


def _dtype(name: str) -> torch.dtype | None:
    return getattr(torch, name) if name else None


def rooms_for(cost: ProcessCost, budget: int | None, *, gpu: bool) -> list[Room]:
    """Return what a run's process may take: the budget, or what it can have once this process is gone."""
    own_gpu = gpu and cost.gpu_left is not None
    if budget is None:
        memory = available_memory()
        size, source = memory.bytes + resident_memory("RssAnon"), memory.source
    else:
        size, source = budget, "--budget"
    rooms = [Room(size, source, cost.bytes, cost.report, on_gpu=False if own_gpu else None)]
    if own_gpu and cost.gpu_left is not None:
        rooms.append(Room(cost.gpu_left, OWN_GPU, on_gpu=True))
    return rooms


def _print_buffers(planned: Plan, console: Console) -> None:
    table = _table("Buffers, by arithmetic", ("of", "what", "type", "elements", "bytes"), texts=3)
    for one in planned.buffers:
        what = one.role + (" (GPU)" if one.on_gpu else "")
        moment = ", for a moment" if one.kind == "for a moment" else ""
        table.add_row(one.owner, what + moment, one.dtype, f"{one.elements:,}", f"{one.bytes:,}")
    _show(table, console)


def _print_process(planned: Plan, cost: ProcessCost, rooms: list[Room], console: Console) -> None:
    table = _table("The process", ("", "MiB"), texts=1)
    rows = [(f"measured: {stage.stage}", stage.bytes) for stage in cost.stages]
    rows += [
        ("learner's state: parameters, optimiser, target, gradients", planned.of("state")),
        ("scratch, bounded by the length of a chunk", planned.of("scratch")),
        ("passes, by the batch", planned.of("passes")),
        ("acting policy, and the best so far", planned.of("policy")),
        ("replay", planned.of("replay")),
        ("for a moment, but kept by the process", planned.of("for a moment")),
        ("peak of training", cost.bytes + planned.peak()),
        ("measured: report at the end, when the replay is closed", cost.report),
        ("peak", _peak(planned, rooms)),
    ]
    for name, size in rows:
        table.add_row(name, f"{size / 2**20:,.1f}")
    _show(table, console)


def _peak(planned: Plan, rooms: list[Room]) -> int:
    return sum(room.needed(planned) for room in rooms)


def _table(title: str, columns: tuple[str, ...], texts: int) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for position, column in enumerate(columns):
        table.add_column(column, justify="left" if position < texts else "right")
    return table


def _show(table: Table, console: Console) -> None:
    console.width = max(console.width, WIDTH)  # narrower, numbers would be cut off
    console.print(table)
    console.print()


def _lines(asked: Question, planned: Plan, rooms: list[Room], free: int) -> Iterator[str]:
    """Yield what there is, what it is enough for and what would save some."""
    for room in rooms:
        yield f"{mebibytes(room.bytes)} can be had ({room.source}); {mebibytes(room.needed(planned))} are needed."
    most = largest_replay(asked.config, asked.sizes, rooms)
    yield f"The largest replay that fits: {most:,} transitions of {planned.row_bytes} bytes."
    yield "The replay's pages can be dropped and read again, at the price of the disk's speed; all are counted."
    needed = max(0, planned.disk - asked.written)
    yield f"Disk: {mebibytes(needed)} for replay and checkpoints; {mebibytes(free)} free for {asked.folder}."
    for line, saved in savings(asked.config, asked.sizes):
        yield f"{line} saves {mebibytes(saved)}"


def _disk_refusal(asked: Question, planned: Plan, free: int) -> str:
    needed = max(0, planned.disk - asked.written)
    if needed <= free:
        return ""
    return (
        f"{asked.folder} needs {mebibytes(needed)} on disk, {mebibytes(free)} are free: make room, or lower "
        "replay_capacity (train would stop at once: it reserves the replay's space)"
    )


def _record(asked: Question, planned: Plan, cost: ProcessCost, rooms: list[Room], free: int) -> dict[str, Any]:
    return {
        "config": msgspec.to_builtins(asked.config),
        "observations": asked.sizes.obs_dim,
        "actions": asked.sizes.action_dim,
        "compute": str(asked.sizes.compute).removeprefix("torch."),
        "buffers": [vars(one) for one in planned.buffers],
        "measured": {stage.stage: stage.bytes for stage in cost.stages} | {"report": cost.report},
        "totals": {
            "state": planned.of("state"),
            "scratch": planned.of("scratch"),
            "passes": planned.of("passes"),
            "replay": planned.of("replay"),
            "buffers_peak": planned.peak(),
            "process_peak": _peak(planned, rooms),
            "disk": planned.disk,
        },
        "rooms": [vars(room) | {"needed": room.needed(planned)} for room in rooms],
        "disk_free": free,
        "largest_replay": largest_replay(asked.config, asked.sizes, rooms),
        "savings": dict(savings(asked.config, asked.sizes)),
        "refusal": refusal(asked.config, asked.sizes, rooms) or _disk_refusal(asked, planned, free),
    }


def free_disk(folder: Path) -> int:
    """Return the bytes that can be written to a folder, which need not exist."""
    return shutil.disk_usage(_nearest_folder(folder)).free


def _bytes_in(folder: Path) -> int:
    """Return what the files of a run take on the disk."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def _nearest_folder(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents, Path("/")) if folder.exists())
