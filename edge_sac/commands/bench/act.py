"""`edge-sac bench act`: how long one action takes, and what a process that only acts holds in memory."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from edge_sac.commands.bench.acting import KINDS, contract, random_weights
from edge_sac.commands.bench.candidate import Work
from edge_sac.commands.bench.crew import crew
from edge_sac.commands.bench.peers import PEERS
from edge_sac.commands.bench.report import Report, check_writable, mebibytes, number, show
from edge_sac.commands.bench.rounds import Pace, Turn, run_rounds

ACTING = "edge_sac.commands.bench.acting"
ALONE = """
import sys
from edge_sac.policy import Policy
policy = Policy.load(sys.argv[1])
for _ in range(1000):
    policy.act([0.0] * len(policy.contract.observation))
for line in open("/proc/self/status"):
    if line.startswith("VmRSS:"):
        print(int(line.split()[1]) * 1024)
"""
"""A process that only acts: nothing of ours but the policy."""
PATIENCE_S = 120.0
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
        alone = resident_alone(path)
        if peers:
            members.add_peers(replace(work, transitions=1_000), peer_python)
        turns = [Turn(name, worker, "act", needed=name not in PEERS) for name, worker in members.workers.items()]
        result = run_rounds(turns, pace)
        for name in [name for name in members.workers if name not in result.lost]:
            resident = result.median(name, lambda window: window.resident)
            report.rows.append(
                result.row(name) | {"of_first": result.ratio(name, KINDS[0]), "resident_bytes": resident}
            )
        report.versions, report.missing = members.versions(), members.missing | result.lost
    report.settings["resident_alone_bytes"] = alone
    held = f"a process with the exported policy alone holds {mebibytes(alone)} MiB ({alone / 1e6:.1f} MB)"
    report.rounds, report.notes = result.raw(), [NOTE, held, result.note()]
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
    show(console, f"One action, {work.obs} observations, {width}-{width}, {work.action} actions", columns, cells)
    report.publish(output, console)
    return 0


def resident_alone(policy: Path) -> int:
    """Return the resident memory [B] of a process that imports `edge_sac.policy`, loads `policy` and acts."""
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(policy)], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    return int(done.stdout)
