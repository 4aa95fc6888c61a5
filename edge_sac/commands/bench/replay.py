"""`edge-sac bench replay`: how fast transitions go in and batches come out, and what one takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from edge_sac.commands.bench.candidate import Work
from edge_sac.commands.bench.crew import crew
from edge_sac.commands.bench.peers import PEERS
from edge_sac.commands.bench.report import Report, check_writable, number, show
from edge_sac.commands.bench.rounds import Pace, Turn, run_rounds
from edge_sac.errors import Refused
from edge_sac.storage import STORAGES

STORING = "edge_sac.commands.bench.storing"
PEER = "Stable-Baselines3"


def bench_replay(
    storages: tuple[str, ...],
    work: Work,
    pace: Pace,
    peers: bool,
    peer_python: str | None,
    output: Path | None,
    console: Console,
) -> int:
    """Time insertion into and sampling from a full replay of each storage; print rates and bytes."""
    check_writable(output)
    unknown = [storage for storage in storages if storage not in STORAGES]
    if unknown:
        raise Refused(f"storage {unknown[0]!r} is unknown; choose of {', '.join(STORAGES)}")
    settings = {"storages": storages, "batch": work.batch, "transitions": work.transitions}
    report = Report("replay", settings | {"rounds": pace.rounds, "seconds": pace.seconds, "peers": peers})
    with crew() as members:
        for storage in storages:
            members.add(storage, STORING, replace(work, variant=storage))
        if peers:
            members.add_peer(PEER, work, peer_python)
        turns = [
            Turn(f"{name} {do}", worker, do, needed=name not in PEERS)
            for name, worker in members.workers.items()
            for do in ("add", "sample")
        ]
        result = run_rounds(turns, pace)
        for name, worker in members.workers.items():
            if f"{name} add" in result.lost:
                continue
            added, drawn = result.row(f"{name} add"), result.row(f"{name} sample")
            report.rows.append(
                {
                    "name": name,
                    "inserts_per_s": added["per_second"],
                    "insert_p99_s": added["p99_s"],
                    "batches_per_s": drawn["per_second"],
                    "batch_p50_s": drawn["p50_s"],
                    "batch_p99_s": drawn["p99_s"],
                    "bytes_per_transition": worker.facts["bytes_per_transition"],
                }
            )
        report.versions, report.missing = members.versions(), members.missing | result.lost
    report.rounds, report.notes = result.raw(), ["batches are drawn in float32 from every storage", result.note()]
    cells = [
        [
            row["name"],
            number(row["inserts_per_s"]),
            number(row["batches_per_s"]),
            number(None if row["batch_p50_s"] is None else 1e6 * row["batch_p50_s"]),
            number(None if row["batch_p99_s"] is None else 1e6 * row["batch_p99_s"]),
            number(row["bytes_per_transition"]),
        ]
        for row in report.rows
    ]
    columns = ["", "inserts/s", "batches/s", "batch p50, us", "batch p99, us", "bytes per transition"]
    title = f"{work.transitions:,} transitions of {work.obs} observations and {work.action} actions, batch {work.batch}"
    show(console, title, columns, cells)
    report.publish(output, console)
    return 0
