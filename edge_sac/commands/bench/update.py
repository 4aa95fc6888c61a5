"""`edge-sac bench update`: what one update costs, beside its own matrix products and beside other libraries."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from rich.console import Console

from edge_sac.commands.bench.candidate import Work
from edge_sac.commands.bench.cpu_load import BusyCore
from edge_sac.commands.bench.crew import Crew, crew
from edge_sac.commands.bench.energy import NOT_READABLE, find_meter
from edge_sac.commands.bench.learner import settings as settings_of
from edge_sac.commands.bench.peers import PEERS
from edge_sac.commands.bench.report import Report, check_writable, number, show
from edge_sac.commands.bench.rounds import Pace, Rounds, Turn, run_rounds

LEARNER, FLOOR = "edge_sac.commands.bench.learner", "edge_sac.commands.bench.floor"
BUSY_THREADS = (1, 2)
PEER_FORMAT = "fp32"
"""What the peers compute in, so that their floor is this one's."""


@dataclass(frozen=True)
class UpdateSettings:
    """What is compared: every width with every thread count on every device, all of `precisions` side by side."""

    precisions: tuple[str, ...] = ("fp32", "fp16")
    widths: tuple[int, ...] = (256,)
    batch: int = 256
    threads: tuple[int, ...] = (1,)
    devices: tuple[str, ...] = ("auto",)
    rounds: int = 5
    seconds: float = 1.0
    transitions: int = 100_000
    peers: bool = False
    peer_python: str | None = None

    def pace(self) -> Pace:
        """Return how the rounds go."""
        return Pace(self.rounds, self.seconds)


def bench_update(chosen: UpdateSettings, busy: bool, output: Path | None, console: Console) -> int:
    """Time updates from a filled replay; print a table per case, with medians and ratios within rounds.

    `busy`: the update rate beside a process that holds one core, instead. Raises ConfigError or Refused for what
    cannot be measured, Lost where one of ours ends.
    """
    from edge_sac.device import choose_device

    check_writable(output)
    for name in chosen.precisions:
        settings_of(Work(variant=name))
    devices = dict.fromkeys(choose_device(name).type for name in chosen.devices)
    report = Report("update, a core busy" if busy else "update", asdict(chosen))
    threads = (1,) if busy else chosen.threads
    for device, width, count in product(devices, chosen.widths, threads):
        work = Work(
            hidden=(width, width), batch=chosen.batch, threads=count, device=device, transitions=chosen.transitions
        )
        with crew() as members:
            (_beside_busy_core if busy else _side_by_side)(chosen, work, members, report, console)
            report.versions |= members.versions()
            report.missing |= members.missing
    report.publish(output, console)
    return 0


def _side_by_side(chosen: UpdateSettings, work: Work, members: Crew, report: Report, console: Console) -> None:
    floors = _add_ours(chosen, work, members)
    if chosen.peers:
        floors |= dict.fromkeys(members.add_peers(work, chosen.peer_python), _floor_name(PEER_FORMAT))
    meter = find_meter(work.device)
    try:
        pace = replace(chosen.pace(), joules=meter.joules if meter is not None else None)
        turns = [Turn(name, worker, "update", needed=name not in PEERS) for name, worker in members.workers.items()]
        result = run_rounds(turns, pace)
    finally:
        if meter is not None:
            meter.close()
    first = chosen.precisions[0]
    rows = []
    for name, worker in members.workers.items():
        if name in result.lost:
            continue
        row = _case(work) | result.row(name) | _ratios(result, name, floors.get(name), first)
        facts = members.workers[floors[name]].facts if name in floors else {}
        if "bytes_per_s" in facts and "pieces" in worker.facts:
            moved = facts["operand_bytes"] + 2 * sum(worker.facts["pieces"].values())
            row |= {"bytes_floor_s": moved / facts["bytes_per_s"]}
            row |= {"of_bytes_floor": row["per_second"] and row["per_second"] * row["bytes_floor_s"]}
        rows.append(row)
    _finish(report, _title(work), result, rows)
    sensor = meter.name if meter is not None else NOT_READABLE
    report.notes.append(f"energy: {sensor}")
    columns = ["", "updates/s", "p50, ms", "p99, ms", "of its floor", f"of {first}", "CPU, ms", "cores", "J/update"]
    if work.device == "cuda":
        columns.append("of bytes/bandwidth")
    cells = [
        [
            row["name"],
            number(row["per_second"]),
            _ms(row["p50_s"]),
            _ms(row["p99_s"]),
            number(row["of_floor"]),
            number(row["of_first"]),
            _ms(row["cpu_s"]),
            number(row["cores"]),
            number(row["joules"], unknown=NOT_READABLE),
            *([number(row.get("of_bytes_floor"))] if work.device == "cuda" else []),
        ]
        for row in rows
    ]
    show(console, _title(work), columns, cells)


def _add_ours(chosen: UpdateSettings, work: Work, members: Crew) -> dict[str, str]:
    """Build the floors and our learners; return which floor each learner stands on."""
    floors = {name: _format(name) for name in chosen.precisions}
    formats = list(floors.values()) + ([PEER_FORMAT] if chosen.peers else [])
    for kind in dict.fromkeys(formats):
        members.add(_floor_name(kind), FLOOR, replace(work, variant=kind))
    for name in chosen.precisions:
        members.add(name, LEARNER, replace(work, variant=name))
    return {name: _floor_name(kind) for name, kind in floors.items()}


def _format(variant: str) -> str:
    """Return the plain precision with the number format of a variant."""
    from edge_sac.precision import PRESETS, precision

    dtype = precision(variant.partition("/")[0]).dtype
    return next(name for name, preset in PRESETS.items() if preset.dtype == dtype)


def _floor_name(kind: str) -> str:
    return f"products alone, {kind}"


def _beside_busy_core(chosen: UpdateSettings, work: Work, members: Crew, report: Report, console: Console) -> None:
    """Measure every candidate undisturbed on one thread, then with one and two threads beside a busy core."""
    kinds = [(name, LEARNER, name) for name in chosen.precisions]
    kinds = [(_floor_name(kind), FLOOR, kind) for kind in dict.fromkeys(map(_format, chosen.precisions))] + kinds
    names = []
    for count in BUSY_THREADS:
        asked = replace(work, threads=count)
        for name, module, variant in kinds:
            members.add(f"{name} ({count})", module, replace(asked, variant=variant), anywhere=True)
        for peer in PEERS if chosen.peers else ():
            if peer not in members.missing:
                members.add_peer(peer, asked, chosen.peer_python, name=f"{peer} ({count})", anywhere=True)
    names = [name.removesuffix(" (1)") for name in members.workers if name.endswith(" (1)")]
    core = BusyCore()
    try:
        result = run_rounds(_busy_turns(names, members), chosen.pace(), core)
    finally:
        core.close()
    rows, cells = [], []
    for name in names:
        base = f"{name}, alone"
        beside = [f"{name}, beside, {count}" for count in BUSY_THREADS]
        ratios = [result.ratio(turn, base) for turn in beside]
        rows += [_case(work) | {"of_alone": 1.0} | result.row(base)]
        rows += [
            _case(work) | {"threads": count, "of_alone": ratio} | result.row(turn)
            for turn, count, ratio in zip(beside, BUSY_THREADS, ratios, strict=True)
        ]
        rates = [result.row(turn)["per_second"] for turn in (base, *beside)]
        cells.append([name, *map(number, rates), *map(number, ratios)])
    _finish(report, _title(work), result, rows)
    columns = ["", "updates/s, 1 thread", "busy, 1", "busy, 2", "ratio, 1", "ratio, 2"]
    show(console, f"{_title(work)}; busy: another process holds one core", columns, cells)


def _busy_turns(names: list[str], members: Crew) -> list[Turn]:
    turns = []
    for name in names:
        one, needed = members.workers[f"{name} (1)"], name not in PEERS
        turns.append(Turn(f"{name}, alone", one, "update", pinned=False, needed=needed))
        for count in BUSY_THREADS:
            worker = members.workers.get(f"{name} ({count})")
            if worker is not None:
                turn = f"{name}, beside, {count}"
                turns.append(Turn(turn, worker, "update", busy=True, pinned=False, needed=needed))
    return turns


def _finish(report: Report, title: str, result: Rounds, rows: list[dict[str, Any]]) -> None:
    report.rows += rows
    report.rounds += result.raw()
    report.notes.append(f"{title}: {result.note()}")
    report.missing |= result.lost


def _ratios(result: Rounds, name: str, floor: str | None, first: str) -> dict[str, float | None]:
    return {
        "of_floor": result.ratio(name, floor) if floor is not None else None,
        "of_first": result.ratio(name, first),
    }


def _case(work: Work) -> dict[str, Any]:
    return {"device": work.device, "hidden": list(work.hidden), "batch": work.batch, "threads": work.threads}


def _title(work: Work) -> str:
    return f"{'-'.join(map(str, work.hidden))}, batch {work.batch}, {work.threads} thread(s), {work.device}"


def _ms(seconds: float | None) -> str:
    return number(None if seconds is None else 1e3 * seconds)
