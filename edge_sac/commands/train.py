"""`edge-sac train` and `edge-sac resume`: from a robot's name to a policy file that was seen to work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
from rich.console import Console

from edge_sac.checkpoint import checkpoint_steps
from edge_sac.commands.build import Run, existing_run, new_run
from edge_sac.commands.deliver import deliver
from edge_sac.commands.progress import StatusLine
from edge_sac.commands.stop_signals import StopSignals
from edge_sac.config import Config
from edge_sac.errors import EdgeSacError, Refused
from edge_sac.run_folder import CONFIG, free_name, read_run, write_config

RUNS = Path("runs")
STOPPED = 130


def train(config: Config, out: Path | None, resume_or_show: bool, console: Console) -> int:
    """Train a new run, in `out` or the next free folder under runs/; return the exit code.

    With `resume_or_show` a run that is there under the plain name is resumed, or shown when it is finished.
    """
    name = config.env or (Path(config.robot).stem if config.robot.endswith(".toml") else config.robot)
    plain = out or RUNS / name.replace("/", "-")
    if resume_or_show and (plain / CONFIG).exists():
        return resume(plain, 0, console)
    run = out or free_name(RUNS, name)
    return _train(run, lambda status: new_run(run, config, status), console)


def resume(run: Path, more: int, console: Console) -> int:
    """Go on with a run, `more` steps beyond its end if above 0; return the exit code."""
    config, _ = read_run(run)
    at = max(checkpoint_steps(run), default=0)
    if more > 0:
        config = msgspec.structs.replace(config, steps=max(config.steps, at) + more)
        write_config(run, config)
    elif at >= config.steps:
        console.print(f"{run} is finished, at step {at}. More: edge-sac resume {run} --steps N", highlight=False)
        return deliver(run, console)
    return _train(run, lambda status: existing_run(run, config, status), console)


def _train(run: Path, make: Callable[[StatusLine], Run], console: Console) -> int:
    with StopSignals() as stop, StatusLine(console) as status:
        made = make(status)
        try:
            _introduce(run, made, console)
            finished = made.trainer.train(stop)
        except EdgeSacError as error:
            # Refused: a checkpoint could not be written, so nothing of "saved" may be said.
            if not isinstance(error, Refused):
                console.print(_saved(run, made), highlight=False, soft_wrap=True)
            raise
        finally:
            made.trainer.close()
    if not finished:
        console.print(_saved(run, made), highlight=False, soft_wrap=True)
        return STOPPED
    return deliver(run, console)


def _introduce(run: Path, made: Run, console: Console) -> None:
    config = made.config
    lines = [
        f"{made.environment.description}; seed {config.seed}",
        f"{config.precision} on {config.device}, {config.threads} thread(s): {made.start.reason}",
        f"into {run}",
    ]
    at = made.trainer.at
    if at.step > 0:
        lines.append(f"resumed at step {at.step}, {made.trainer.agent.updates} updates")
    if made.newer > 0:
        lost = round(made.newer * config.updates_per_step)
        lines.append(f"the last process was killed: {made.newer} newer transitions kept, about {lost} updates lost")
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


def _saved(run: Path, made: Run) -> str:
    return f"Saved at step {made.trainer.at.step}. Go on with: edge-sac resume {run}"
