"""`edge-sac bench env`: how many steps a second the twins make, or any environment, beside their bare physics."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.console import Console

from edge_sac.commands.bench.candidate import Work
from edge_sac.commands.bench.crew import crew
from edge_sac.commands.bench.report import Report, check_writable, number, show
from edge_sac.commands.bench.rounds import Pace, Turn, run_rounds
from edge_sac.commands.bench.stepping import BARE, ROBOT, TWINS
from sim.registration import physics_available

STEPPING = "edge_sac.commands.bench.stepping"


def bench_env(env: str | None, pace: Pace, output: Path | None, console: Console) -> int:
    """Time steps with random actions, resets included; `env` is a Gymnasium id, or None for the twins."""
    check_writable(output)
    report = Report("env", {"env": env, "rounds": pace.rounds, "seconds": pace.seconds})
    available = physics_available()
    with crew() as members:
        for twin in [] if env is not None else TWINS:
            if available[twin] != "ok":
                report.missing[f"{ROBOT} on {twin}"] = available[twin]
                continue
            members.add(twin, STEPPING, replace(Work(), variant=twin))
            members.add(BARE + twin, STEPPING, replace(Work(), variant=BARE + twin))
        if env is not None:
            members.add(env, STEPPING, replace(Work(), variant=env))
        result = run_rounds([Turn(name, worker, "step") for name, worker in members.workers.items()], pace)
        for name in members.workers:
            report.rows.append(result.row(name) | {"of_bare": result.ratio(name, BARE + name)})
    report.rounds = result.raw()
    report.notes = [result.note()]
    cells = [
        [
            row["name"],
            number(row["per_second"]),
            number(None if row["p50_s"] is None else 1e6 * row["p50_s"]),
            number(None if row["p99_s"] is None else 1e6 * row["p99_s"]),
            number(row["of_bare"]),
        ]
        for row in report.rows
    ]
    show(console, env or f"{ROBOT}, one control period", ["", "steps/s", "p50, us", "p99, us", "of bare"], cells)
    report.publish(output, console)
    return 0
