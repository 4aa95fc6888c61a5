"""`edge-sac bench act`: how long one action takes, and what a process that only acts holds in memory."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from edge_sac.commands.bench.acting import KINDS, contract, random_weights
from edge_sac.commands.bench.candidate import Work
from edge_sac.commands.bench.crew import crew
from edge_sac.commands.bench.peers import PEERS
from edge_sac.commands.bench.report import Report, check_writable, mebibytes, number, table
from edge_sac.commands.bench.rounds import Pace, Turn, run_rounds

ACTING = "edge_sac.commands.bench.acting"
NOTE = "numpy: the same network in float32, one product a layer, nothing checked; SB3 and SBX: predict()"


def bench_act(
    width: int, pace: Pace, peers: bool, peer_python: str | None, output: Path | None, console: Console
) -> int:
    """Time deterministic actions of a policy of two hidden layers; print p50, p99 and memory."""
    import numpy as np

    from edge_sac.export import export_policy

    check_writable(output)
    work = Work(hidden=(width, width))
    report = Report("act", {"width": width, "rounds": pace.rounds, "seconds": pace.seconds, "peers": peers})
    with crew() as members, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.onnx"
        observed = np.random.default_rng(0).standard_normal((64, work.obs)).astype(np.float32)
        export_policy(path, random_weights(work), contract(work), observed)
        for kind in KINDS:
            members.add(kind, ACTING, replace(work, variant=kind, path=str(path)))
        if peers:
            members.add_peers(replace(work, transitions=1_000), peer_python)
        turns = [Turn(name, worker, "act", needed=name not in PEERS) for name, worker in members.workers.items()]
        result = run_rounds(turns, pace)
        for name in members.workers:
            resident = result.median(name, lambda window: window.resident)
            report.rows.append(
                result.row(name) | {"of_first": result.ratio(name, KINDS[0]), "resident_bytes": resident}
            )
        report.versions, report.missing = members.versions(), members.missing | result.lost
    report.rounds, report.notes = result.raw(), [NOTE, result.note()]
    cells = [
        [
            row["name"],
            *(number(None if row[key] is None else 1e6 * row[key]) for key in ("p50_s", "p99_s")),
            number(row["of_first"]),
            mebibytes(row["resident_bytes"]),
        ]
        for row in report.rows
    ]
    columns = ["", "p50, us", "p99, us", f"rate of {KINDS[0]}", "resident, MiB"]
    console.print(table(f"One action, {work.obs} observations, {width}-{width}, {work.action} actions", columns, cells))
    report.publish(output, console)
    return 0
