"""`edge-sac bench memory`: the bytes of every piece of a learner, and of the process it lives in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from edge_sac.commands.bench.candidate import Work
from edge_sac.commands.bench.learner import settings as settings_of
from edge_sac.commands.bench.peers import PEERS, module
from edge_sac.commands.bench.report import Report, check_writable, mebibytes, number, show
from edge_sac.commands.bench.worker import Lost, Worker

LEARNER = "edge_sac.commands.bench.learner"
UPDATES = 200
PATIENCE_S = 600.0
"""For so many updates of the widest networks."""
STAGES = ("interpreter", "torch", "imports", "learner", "replay")


@dataclass(frozen=True)
class MemorySettings:
    """Whose memory is measured, and at what size."""

    precisions: tuple[str, ...] = ("fp32", "fp16")
    widths: tuple[int, ...] = (256,)
    peers: bool = False
    peer_python: str | None = None


def bench_memory(chosen: MemorySettings, work: Work, output: Path | None, console: Console) -> int:
    """Build each learner in a process of its own, one at a time; print its pieces and what the process held."""
    from edge_sac.device import choose_device

    check_writable(output)
    for name in chosen.precisions:
        settings_of(Work(variant=name))
    work = replace(work, device=choose_device(work.device).type)
    settings = {"batch": work.batch, "transitions": work.transitions, "device": work.device, "peers": chosen.peers}
    report = Report("memory", settings | {"precisions": chosen.precisions, "widths": chosen.widths})
    for width in chosen.widths:
        sized = replace(work, hidden=(width, width))
        ours = [_measure(name, LEARNER, replace(sized, variant=name), None, report) for name in chosen.precisions]
        _show_pieces(f"{width}-{width}, {work.device}: bytes the learner holds", ours, console)
        rows = list(ours)
        for peer in PEERS if chosen.peers else ():
            try:
                rows.append(_measure(peer, module(peer), sized, chosen.peer_python, report))
            except Lost as error:
                report.missing[peer] = str(error)
        _show_process(sized, rows, console)
        report.rows += rows
    report.publish(output, console)
    return 0


def _measure(name: str, module: str, work: Work, python: str | None, report: Report) -> dict[str, Any]:
    """Return the memory of one learner's process, which ends here. Raises Lost."""
    worker = Worker(module, work, python=python)
    try:
        last = worker.ask("update", 0.0, UPDATES, PATIENCE_S)
    finally:
        worker.close()
    facts = worker.facts
    report.versions[name] = facts["versions"]
    roles = facts.get("roles")
    return {
        "name": name,
        "hidden": list(work.hidden),
        "roles": roles,
        "pieces": facts.get("pieces"),
        "total": None if roles is None else sum(roles.values()),
        "state": facts.get("state"),
        "unreached": facts.get("unreached"),
        "stages": facts["stages"],
        "peak": last["peak"],
        "cuda_peak": last["report"].get("cuda_peak"),
        "bytes_per_transition": facts["bytes_per_transition"],
    }


def _show_pieces(title: str, rows: list[dict[str, Any]], console: Console) -> None:
    roles = list(dict.fromkeys(role for row in rows for role in row["roles"]))
    cells = [[role, *(f"{row['roles'].get(role, 0):,}" for row in rows)] for role in roles]
    for key, name in (("total", "total"), ("state", "of these saved, or gradients")):
        cells.append([name, *(f"{row[key]:,}" for row in rows)])
        cells.append([f"  over {rows[0]['name']}", *(number(row[key] / rows[0][key]) for row in rows)])
    cells.append(["tensors reached from elsewhere", *(f"{row['unreached']:,}" for row in rows)])
    show(console, title, ["", *(row["name"] for row in rows)], cells)


def _show_process(work: Work, rows: list[dict[str, Any]], console: Console) -> None:
    cells = [
        [
            row["name"],
            *(mebibytes(row["stages"].get(stage)) for stage in STAGES),
            mebibytes(row["peak"]),
            mebibytes(row["cuda_peak"]),
            number(row["bytes_per_transition"]),
        ]
        for row in rows
    ]
    title = f"Resident after each stage, MiB: {'-'.join(map(str, work.hidden))}, {work.transitions:,} transitions"
    peak = f"peak, {UPDATES} updates"
    show(console, title, ["", *STAGES, peak, "CUDA peak", "bytes per transition"], cells)
