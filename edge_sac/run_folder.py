"""A run's folder: where it is made, what is written at its start, and what is read when it goes on.

`config.toml` is the complete configuration; `start.json` is what was found out once, at the start, and must not
change on resuming: the environment's contract and the way matrices are multiplied.
"""

from __future__ import annotations

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


def free_name(root: Path, name: str) -> Path:
    """Return root/name, or the next free root/name-2, root/name-3, ..."""
    plain = name.replace("/", "-")
    taken = root / plain
    number = 2
    while taken.exists():
        taken = root / f"{plain}-{number}"
        number += 1
    return taken


def create_run(run: Path, config: Config, start: Start) -> None:
    """Make the folder and write its start. Raises Refused when it is there and not empty, or cannot be written."""
    refuse_occupied(run)
    try:
        run.mkdir(parents=True, exist_ok=True)
        write_file(run / START, msgspec.json.format(msgspec.json.encode(start)))
        write_config(run, config)
    except OSError as error:
        raise Refused(f"cannot write the run folder {run}: {error}; give a writable one with --out") from error


def refuse_occupied(run: Path) -> None:
    """Raise Refused when `run` holds anything, or is no folder."""
    if (run / CONFIG).exists():
        raise Refused(f"{run} holds a run; continue it with 'edge-sac resume {run}' or give another --out")
    if run.exists() and (not run.is_dir() or any(run.iterdir())):
        raise Refused(f"{run} exists and is not an empty folder; give another --out")


def write_config(run: Path, config: Config) -> None:
    """Write the complete configuration."""
    write_file(run / CONFIG, dump_config(config).encode())


def read_run(run: Path) -> tuple[Config, Start]:
    """Return what a run was started with. Raises Refused when `run` is none, ConfigError when it was damaged."""
    if not (run / CONFIG).is_file() or not (run / START).is_file():
        raise Refused(f"{run} is not a run folder: it has no {CONFIG} or no {START}")
    config = load_config(run / CONFIG)
    try:
        return config, msgspec.json.decode((run / START).read_bytes(), type=Start)
    except (OSError, msgspec.DecodeError, PolicyError, UnicodeDecodeError) as error:
        raise ConfigError(f"{run / START} is damaged: {error}; the run cannot go on without it") from error
