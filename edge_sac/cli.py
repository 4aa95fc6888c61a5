"""The command line: parses, dispatches lazily, and turns errors into one line and an exit code.

0 done; 2 refused, nothing moved or overwritten; 3 stopped by a fault or a NaN, state saved; 4 checked and failed;
130 stopped by the user, saved; 1 is a bug.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from edge_sac import __version__
from edge_sac.commands.bench.command_line import app as bench
from edge_sac.commands.options import reachable, require
from edge_sac.commands.terminal import Terminal, discard_output
from edge_sac.errors import EdgeSacError, Refused
from edge_sac.openmp import wait_passively

app = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="Train a Soft Actor-Critic policy in half precision on the robot's own computer.",
)
app.add_typer(bench, name="bench")
REFUSED, FAULT, FAILED, INTERRUPTED = 2, 3, 4, 130
BROKEN_PIPE = 141
"""What a shell reports of a program whose reader went away."""

# Typer brings its own copy of click or uses click itself; this is the base of its errors either way.
UsageError: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


Run = Annotated[Path, typer.Argument(help="A run's folder.", show_default=False)]


def _overrides(**given: Any) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _check_one_of(robot: str | None, env: str | None) -> None:
    """Raise Refused where not one of them, or none, is given."""
    if robot is not None and env is not None:
        raise Refused(f"both a robot ({robot}) and --env {env} are given; give one of them")
    if env == "":
        raise Refused("--env is empty; give a Gymnasium id such as Pendulum-v1, or leave it out")


@app.command()
def train(
    robot: Annotated[
        str | None, typer.Argument(help="A robot's name or TOML file [furuta].", show_default=False)
    ] = None,
    env: Annotated[str | None, typer.Option(help="Train this Gymnasium environment instead.")] = None,
    precision: Annotated[str | None, typer.Option(help="fp16, fp32, or fp16-minus-<fix>.")] = None,
    target: Annotated[str | None, typer.Option(help="How the target follows: lag, kahan or plain.")] = None,
    storage: Annotated[str | None, typer.Option(help="Of the replay: fp16, fp32, just-round or u8.")] = None,
    steps: Annotated[int | None, typer.Option(help="Environment steps.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random.")] = None,
    physics: Annotated[str | None, typer.Option(help="Of the twin: pybullet, equations or auto.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or auto.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder [runs/<robot>, the next free].")] = None,
    config: Annotated[Path | None, typer.Option(help="A TOML file of settings; options override it.")] = None,
    resume_or_show: Annotated[
        bool, typer.Option("--resume-or-show", help="Go on with the run that is there, or show it.")
    ] = False,
) -> int:
    """Train a robot, or any Gymnasium environment with Box spaces, and leave a policy that runs."""
    require("train", "cpu")
    from edge_sac.commands import train as command
    from edge_sac.config import load_config, parse_config

    _check_one_of(robot, env)
    given = _overrides(
        robot=robot,
        env=env,
        precision=precision,
        target=target,
        storage=storage,
        steps=steps,
        seed=seed,
        physics=physics,
        device=device,
    )
    if robot is not None:
        given["env"] = ""
    chosen = load_config(config, given) if config else parse_config("", "command line", given)
    if resume_or_show:
        return command.resume_or_show(chosen, given, out, Terminal())
    return command.train(chosen, out, Terminal())


@app.command()
def resume(
    run: Run, steps: Annotated[int | None, typer.Option(help="Steps beyond the run's end.", min=1)] = None
) -> int:
    """Go on with a run that was stopped or killed, or train a finished one further."""
    require("train", "cpu")
    from edge_sac.commands import train as command

    return command.resume(run, steps, Terminal())


@app.command("eval")
def evaluate(
    where: Annotated[Path, typer.Argument(metavar="RUN|POLICY", show_default=False, callback=reachable)],
    robot: Annotated[str | None, typer.Option(help="Another robot than the policy was trained for.")] = None,
    physics: Annotated[str | None, typer.Option(help="Of the twin: pybullet, equations or auto.")] = None,
    episodes: Annotated[int, typer.Option(min=1, max=100_000)] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Of the episodes.")] = 0,
    json: Annotated[Path | None, typer.Option(help="Also write the result here.", callback=reachable)] = None,
) -> int:
    """Drive a policy without noise and judge it."""
    require("cpu")
    from edge_sac.commands import evaluate as command

    return command.evaluate(where, robot, physics, episodes, seed, json, Terminal())


@app.command()
def export(
    run: Run,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file [RUN/policy.onnx].", callback=reachable)
    ] = None,
    last: Annotated[bool, typer.Option("--last", help="The last policy instead of the best evaluated.")] = False,
) -> int:
    """Write a run's policy to one ONNX file that carries its whole contract."""
    require("train", "cpu")
    from edge_sac.commands.deliver import export_run
    from edge_sac.run_folder import POLICY

    path = output or run / POLICY
    which = export_run(run, path, last=last)
    Terminal().print(f"{path}: {which}, read back at parity")
    return 0


@app.command()
def reproduce(
    what: Annotated[
        str, typer.Argument(help="furuta: fp16 beside fp32 on the same seeds; memory: every option of memory.")
    ],
    seeds: Annotated[int | None, typer.Option(min=1, max=100, help="[furuta 5, memory 3]")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Of each run.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs side by side.")] = os.cpu_count() or 1,
    cells: Annotated[
        Path | None, typer.Option(help="Where each run's result is kept [docs/results/WHAT].", show_default=False)
    ] = None,
) -> int:
    """Remake a committed table: runs what is missing, resumes what was cut, writes table and figure."""
    require("train", "cpu")
    from edge_sac.commands import reproduce as command

    return command.reproduce(what, seeds, steps, jobs, cells or Path("docs/results") / what, Terminal())


@app.command()
def plan(
    config: Annotated[
        Path | None,
        typer.Argument(help="A TOML file of settings, or a run's folder.", show_default=False, callback=reachable),
    ] = None,
    robot: Annotated[str | None, typer.Option(help="A robot's name or TOML file.")] = None,
    env: Annotated[str | None, typer.Option(help="A Gymnasium environment instead.")] = None,
    precision: Annotated[str | None, typer.Option(help="fp16, fp32, or fp16-minus-<fix>.")] = None,
    storage: Annotated[str | None, typer.Option(help="Of the replay: fp16, fp32, just-round or u8.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda or auto.")] = None,
    budget: Annotated[
        str | None, typer.Option(help="Of the whole process, as 4GB or 512MiB [what can be had here].")
    ] = None,
    table: Annotated[
        bool, typer.Option("--table", help="Only print the bytes per parameter of every option, as Markdown.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Also write the result here.", callback=reachable)] = None,
) -> int:
    """Say what a run will hold, byte by byte, before it is begun; refuse one that does not fit, and say what would."""
    require("train", "cpu")
    from edge_sac.byte_size import parse_bytes
    from edge_sac.commands import plan as command
    from edge_sac.commands.bytes_table import bytes_table

    if table:
        print(bytes_table(), end="")
        return 0
    _check_one_of(robot, env)
    given = _overrides(robot=robot, env=env, precision=precision, storage=storage, device=device)
    if robot is not None:
        given["env"] = ""
    size = None if budget is None else parse_bytes(budget)
    return command.plan(config, given, size, json, Terminal())


@app.command()
def doctor() -> int:
    """Say of each thing this program needs whether it works here, and what mends it."""
    from edge_sac.commands.doctor import doctor_lines

    lines = doctor_lines()
    for line in lines:
        mark = "ok  " if line.ok else "FAIL" if line.failed else "note"
        print(f"{mark}  {line.name}: {line.message}")
        if not line.ok and line.remedy:
            print(f"      {line.remedy}")
    return FAILED if any(line.failed for line in lines) else 0


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Train a Soft Actor-Critic policy in half precision on the robot's own computer."""


def exit_code(error: Exception) -> int | None:
    """Return the exit code of an error that is no bug, or None."""
    from robots.errors import RobotError, SpecError

    if isinstance(error, Refused | SpecError):
        return REFUSED
    return FAULT if isinstance(error, EdgeSacError | RobotError) else None


def main() -> None:
    """Run the command line and exit with its code."""
    wait_passively(os.environ)
    try:
        code = app(args=sys.argv[1:] or ["--help"], standalone_mode=False)
        sys.stdout.flush()
    except typer.Exit as error:
        code = error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except BrokenPipeError:
        discard_output()
        code = BROKEN_PIPE
    except Exception as error:
        code = _answer(error)
    sys.exit(code or 0)


def _answer(error: Exception) -> int:
    """Print an error that is the user's to mend in one line and return its code; raise any other again."""
    message = str(error)
    if isinstance(error, UsageError):
        code, message = REFUSED, f"{error.format_message()} (edge-sac COMMAND --help shows what there is)"  # type: ignore[attr-defined]
    elif (known := exit_code(error)) is not None:
        code = known
    else:
        raise error
    print(f"edge-sac: {' '.join(message.split())}", file=sys.stderr)
    return code
