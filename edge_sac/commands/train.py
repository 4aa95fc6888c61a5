"""`edge-sac train` and `edge-sac resume`: from a robot's name to a policy file that was seen to work."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path

import msgspec
from rich.console import Console

from edge_sac.checkpoint import checkpoint_steps
from edge_sac.commands.build import Run, existing_run, new_run
from edge_sac.commands.deliver import deliver
from edge_sac.commands.memory_answer import answer
from edge_sac.commands.progress import StatusLine
from edge_sac.commands.stop_signals import StopSignals
from edge_sac.commands.terminal import command
from edge_sac.config import Config
from edge_sac.errors import EdgeSacError, Refused
from edge_sac.run_folder import Start, free_name, is_run, read_run, write_config
from robots.errors import RobotError

RUNS = Path("runs")
STOPPED = 130


def train(config: Config, out: Path | None, console: Console) -> int:
    """Train a new run, in `out` or the next free folder under runs/; return the exit code."""
    run = out or free_name(RUNS, _name(config))
    return _train(run, lambda status: new_run(run, config, status), console)


def resume_or_show(config: Config, asked: Collection[str], out: Path | None, console: Console) -> int:
    """Resume the run that is there under the plain name, show it when finished, else train it; return the exit code.

    Raises Refused when a setting that is among `asked`, or is not the default, is another than the run's.
    """
    run = out or RUNS / _name(config)
    if not is_run(run):
        return train(config, run, console)
    own, _ = read_run(run)
    for key in Config.__struct_fields__:
        wanted, found = getattr(config, key), getattr(own, key)
        if key == "robot" and wanted.endswith(".toml"):
            wanted = str(Path(wanted).resolve())
        said = key in asked or wanted != getattr(Config(), key)
        if said and wanted not in (found, "auto"):
            raise Refused(
                f"{run} holds a run with {key} {found!r}, not {wanted!r}; leave that out to go on with it, or give "
                "another --out"
            )
    return resume(run, None, console)


def _name(config: Config) -> str:
    name = config.env or (Path(config.robot).stem if config.robot.endswith(".toml") else config.robot)
    return name.replace("/", "-")


def resume(run: Path, more: int | None, console: Console) -> int:
    """Go on with a run, `more` steps beyond its end if given; return the exit code."""
    config, _ = read_run(run)
    at = max(checkpoint_steps(run), default=0)
    if more is None and at >= config.steps:
        console.print(f"{run} is finished, at step {at}. More: {command('resume', run, '--steps', 'N')}")
        return deliver(run, console)
    if more is not None:
        config = msgspec.structs.replace(config, steps=max(config.steps, at) + more)

    def make(status: StatusLine) -> Run:
        made = existing_run(run, config, status)
        if more is not None:
            write_config(run, config)
        return made

    return _train(run, make, console)


def _train(run: Path, make: Callable[[StatusLine], Run], console: Console) -> int:
    with StopSignals() as stop, StatusLine(console) as status:
        made = make(status)
        try:
            _introduce(run, made, console)
            finished = made.trainer.train(stop)
        except Exception as error:
            console.print(_saved(run, made))
            # What is refused or fails from here on stops a run that was under way.
            if told := answer(error, made.config, made.start.contract):
                raise EdgeSacError(f"stopped at step {made.trainer.at.step}: {told}") from error
            if isinstance(error, Refused | RobotError | OSError):
                raise EdgeSacError(f"stopped at step {made.trainer.at.step}: {error}") from error
            raise
        finally:
            made.trainer.close()
    if not finished:
        console.print(_saved(run, made))
        return STOPPED
    return deliver(run, console)


def _introduce(run: Path, made: Run, console: Console) -> None:
    config = made.config
    lines = [
        f"{made.environment.description}; seed {config.seed}",
        f"{config.precision} on {config.device}: {made.start.reason}",
        _threads(config.threads, made.start),
        made.trainer.drawing,
        f"into {run}",
    ]
    at = made.trainer.at
    if at.step > 0:
        lines.append(f"resumed at step {at.step}, {made.trainer.agent.updates} updates")
    newer, missing = made.recovery.newer, made.recovery.missing
    if newer > 0:
        learned = min(newer, max(0, at.step + newer - config.random_steps + 1))
        lost = round(learned * config.updates_per_step)
        lines.append(f"the last process was killed: {newer} newer transitions kept, about {lost} updates lost")
    if missing > 0:
        lines.append(f"the replay is gone, and {missing} transitions with it: going on with an empty one")
    for line in filter(None, lines):
        console.print(line)


def _threads(configured: int, start: Start) -> str:
    if configured:
        return f"{configured} thread(s), as configured"
    return f"{start.threads} thread(s), chosen at the run's start: {start.threads_reason}"


def _saved(run: Path, made: Run) -> str:
    step = made.trainer.saved
    saved = "Nothing new was saved." if step is None else f"Saved at step {step}."
    return f"{saved} Go on with: {command('resume', run)}"
