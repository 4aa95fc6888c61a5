"""The options of `edge-sac bench`; each benchmark is imported when it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edge_sac.commands.bench.candidate import Work
from edge_sac.commands.options import reachable, require
from edge_sac.commands.terminal import Terminal
from edge_sac.errors import Refused

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Measure this machine.")

Json = Annotated[Path | None, typer.Option(help="Also write the result here.", callback=reachable)]
Rounds = Annotated[int, typer.Option(min=1, help="In which each candidate has its turn; medians are over them.")]
Seconds = Annotated[float, typer.Option(min=0.01, help="Of each turn.")]
Precision = Annotated[
    str, typer.Option(help="Comma-separated; with settings as fp16/target=kahan. Ratios are to the first.")
]
Width = Annotated[str, typer.Option(help="Of both hidden layers; several comma-separated.")]
Batch = Annotated[int, typer.Option(min=1)]
Transitions = Annotated[int, typer.Option(min=1, help="In the replay, which is full.")]
Peers = Annotated[bool, typer.Option("--peers", help="Beside other libraries, those that are installed.")]
PeerPython = Annotated[str | None, typer.Option(help="The interpreter that has the peers [this one].")]


def _counts(text: str, option: str) -> tuple[int, ...]:
    """Return the whole numbers above zero in a comma-separated list. Raises Refused."""
    try:
        found = tuple(int(part) for part in text.split(","))
    except ValueError:
        found = (0,)
    if min(found) < 1:
        raise Refused(f"{option} is {text!r}; expected whole numbers above zero, separated by commas")
    return found


@app.command()
def update(
    precision: Precision = "fp32,fp16",
    width: Width = "256",
    batch: Batch = 256,
    threads: Annotated[str, typer.Option(help="Several comma-separated.")] = "1",
    device: Annotated[str, typer.Option(help="cpu, cuda or auto; several comma-separated.")] = "auto",
    rounds: Rounds = 5,
    seconds: Seconds = 1.0,
    transitions: Transitions = 100_000,
    peers: Peers = False,
    peer_python: PeerPython = None,
    busy: Annotated[
        bool, typer.Option("--busy", help="Beside a process that holds one core, as a control loop may.")
    ] = False,
    json: Json = None,
) -> int:
    """Time one update, beside its matrix products alone."""
    require("train")
    from edge_sac.commands.bench.update import UpdateSettings, bench_update

    chosen = UpdateSettings(
        precisions=tuple(precision.split(",")),
        widths=_counts(width, "--width"),
        batch=batch,
        threads=_counts(threads, "--threads"),
        devices=tuple(device.split(",")),
        rounds=rounds,
        seconds=seconds,
        transitions=transitions,
        peers=peers,
        peer_python=peer_python,
    )
    return bench_update(chosen, busy, json, Terminal())


@app.command()
def act(
    width: Annotated[int, typer.Option(min=1, help="Of both hidden layers.")] = 256,
    rounds: Rounds = 5,
    seconds: Seconds = 0.5,
    peers: Peers = False,
    peer_python: PeerPython = None,
    json: Json = None,
) -> int:
    """Time one action, and see what a process that only acts holds."""
    require("cpu")
    from edge_sac.commands.bench.act import bench_act
    from edge_sac.commands.bench.rounds import Pace

    return bench_act(width, Pace(rounds, seconds), peers, peer_python, json, Terminal())


@app.command()
def replay(
    storage: Annotated[str, typer.Option(help="Comma-separated.")] = "fp16,u8,just-round,fp32",
    batch: Batch = 256,
    transitions: Transitions = 100_000,
    rounds: Rounds = 5,
    seconds: Seconds = 0.5,
    peers: Peers = False,
    peer_python: PeerPython = None,
    json: Json = None,
) -> int:
    """Time insertion and sampling, and count the bytes of a transition."""
    from edge_sac.commands.bench.replay import bench_replay
    from edge_sac.commands.bench.rounds import Pace

    work = Work(batch=batch, transitions=transitions)
    return bench_replay(tuple(storage.split(",")), work, Pace(rounds, seconds), peers, peer_python, json, Terminal())


@app.command()
def memory(
    precision: Precision = "fp32,fp16",
    width: Width = "256",
    batch: Batch = 256,
    transitions: Transitions = 1_000_000,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    peers: Peers = False,
    peer_python: PeerPython = None,
    json: Json = None,
) -> int:
    """Count the bytes of a learner, piece by piece, and of its process."""
    require("train")
    from edge_sac.commands.bench.memory import MemorySettings, bench_memory

    chosen = MemorySettings(tuple(precision.split(",")), _counts(width, "--width"), peers, peer_python)
    return bench_memory(chosen, Work(batch=batch, transitions=transitions, device=device), json, Terminal())


@app.command()
def env(
    env: Annotated[str | None, typer.Option(help="A Gymnasium environment instead of the twins.")] = None,
    rounds: Rounds = 5,
    seconds: Seconds = 0.5,
    json: Json = None,
) -> int:
    """Time environment steps."""
    from edge_sac.commands.bench.env import bench_env
    from edge_sac.commands.bench.rounds import Pace

    return bench_env(env, Pace(rounds, seconds), json, Terminal())
