"""A run's folder: where it is made, what is written at its start, and what is read when it goes on.

`config.toml` is the complete configuration; `start.json` is what was found out once, at the start, and must not
change on resuming: the environment's contract and the way matrices are multiplied.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec

from edge_sac.atomic import write_file
from edge_sac.config import Config, dump_config, load_config
from edge_sac.contract import Contract
from edge_sac.errors import ConfigError, PolicyError, Refused

CONFIG, START, REPLAY, POLICY, REPORT = "config.toml", "start.json", "replay", "policy.onnx", "report.png"
EVALUATION = "evaluation.json"


class Start(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a run found out at its start."""

    contract: Contract
    compute: str
    """The dtype that matrix products are computed in, as torch names it."""
    reason: str
    """Why that one."""
    definition: str = ""
    """A hash of all that makes the robot's twin and task."""
    threads: int = 1
    """Of torch on the CPU: another number adds up in another order."""
    threads_reason: str = ""
    """Why that many."""


def free_name(root: Path, name: str) -> Path:
    """Return root/name, or the next free root/name-2, root/name-3, ..."""
    plain = name.replace("/", "-")
    taken = root / plain
    number = 2
    with _reachable(taken):
        while taken.exists():
            taken = root / f"{plain}-{number}"
            number += 1
    return taken


@contextlib.contextmanager
def new_folder(run: Path, config: Config, start: Start) -> Iterator[None]:
    """Make a run's folder around the making of the run; when that fails, everything is as it was before.

    Raises Refused when the folder is there and not empty, or cannot be written. A lock on it keeps out another process
    that makes the same run at the same moment. `config.toml` comes last: with it the folder holds a run.
    """
    with _reachable(run):
        missing = [folder for folder in (run, *run.parents) if not folder.exists()]
    lock = -1
    try:
        try:
            run.mkdir(parents=True, exist_ok=True)
            lock = os.open(run, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Refused(f"another process is just making a run in {run}; give another --out") from error
        except OSError as error:
            raise _unwritable(run, error) from error
        refuse_occupied(run)
        try:
            _write_start(run, config, start)
            yield
        except BaseException:
            _empty(run)
            raise
    except BaseException:
        with contextlib.suppress(OSError):
            for folder in missing:
                folder.rmdir()
        raise
    finally:
        if lock >= 0:
            os.close(lock)


def _write_start(run: Path, config: Config, start: Start) -> None:
    try:
        _empty(run)
        write_file(run / START, msgspec.json.format(msgspec.json.encode(start)))
        write_config(run, config)
    except OSError as error:
        raise _unwritable(run, error) from error


def _unwritable(run: Path, error: OSError) -> Refused:
    return Refused(f"cannot write the run folder {run}: {error}; give a writable one with --out")


def _empty(run: Path) -> None:
    """Remove what is in the folder of a run that was never begun."""
    for path in run.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def refuse_occupied(run: Path) -> None:
    """Raise Refused when `run` holds anything, or is no folder; what a crash left of the making of a run is nothing."""
    with _reachable(run):
        if (run / CONFIG).exists():
            raise Refused(f"{run} holds a run; continue it with 'edge-sac resume {run}' or give another --out")
        if run.exists() and (not run.is_dir() or not all(_half_made(path.name) for path in run.iterdir())):
            raise Refused(f"{run} exists and is not an empty folder; give another --out")


def _half_made(name: str) -> bool:
    """Return whether a file of this name is there before `config.toml` is."""
    return name == START or (name.endswith(".new") and name.startswith((f".{START}.", f".{CONFIG}.")))


@contextlib.contextmanager
def _reachable(path: Path) -> Iterator[None]:
    """Turn what the system says of a path that cannot even be looked at into Refused."""
    try:
        yield
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}; give another path") from error


def is_run(folder: Path) -> bool:
    """Return whether a folder holds a run."""
    with _reachable(folder):
        return (folder / CONFIG).is_file() and (folder / START).is_file()


def write_config(run: Path, config: Config) -> None:
    """Write the complete configuration."""
    write_file(run / CONFIG, dump_config(config).encode())


def read_run(run: Path) -> tuple[Config, Start]:
    """Return what a run was started with. Raises Refused when `run` is none, ConfigError when it was damaged."""
    if not is_run(run):
        raise Refused(f"{run} is not a run folder: it has no {CONFIG} or no {START}")
    config = load_config(run / CONFIG)
    try:
        return config, msgspec.json.decode((run / START).read_bytes(), type=Start)
    except (OSError, msgspec.DecodeError, PolicyError, UnicodeDecodeError) as error:
        raise ConfigError(f"{run / START} is damaged: {error}; the run cannot go on without it") from error
