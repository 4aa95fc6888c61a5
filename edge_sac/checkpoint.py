"""Checkpoints: everything a run needs to go on, in `checkpoints/STEP/`, whole or not there at all.

A folder holds the tensors (safetensors) and a JSON file with the state and the hashes of both. It is written
under another name, forced to the disk, then renamed; only then is the oldest removed. Names that begin with a
dot are never checkpoints: `.new-STEP` is being written or removed, `.old-STEP` is replaced by a newer one of
its step.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as bytes_of_tensors

from edge_sac.atomic import sync_folder
from edge_sac.errors import CheckpointError

SCHEMA = 1
FOLDER = "checkpoints"
TENSORS_FILE = "tensors.safetensors"
STATE_FILE = "checkpoint.json"
_NEW, _OLD = ".new-", ".old-"
KEPT = 3
"""Checkpoints that stay; while one is written it is one more."""


def save_checkpoint(
    run: Path,
    step: int,
    tensors: Mapping[str, torch.Tensor],
    state: Mapping[str, Any],
    keep: int = KEPT,
) -> Path:
    """Return the folder of the checkpoint written for step, of which the newest `keep` stay.

    Tensors of any device and dtype; no two may share memory. `state` is JSON: integers of any size, finite
    floats; tuples come back as lists. Raises CheckpointError when the disk refuses; older checkpoints are
    then untouched. Raises ValueError or TypeError, with nothing written, for what JSON or safetensors cannot
    hold.
    """
    if step < 0 or keep < 1:
        raise ValueError(f"step is {step} and keep {keep}; a step is at least 0 and one checkpoint is kept")
    packed = bytes_of_tensors({name: tensor.detach().contiguous() for name, tensor in tensors.items()})
    record = _sealed(
        {
            "schema": SCHEMA,
            "step": step,
            "state": dict(state),
            "tensors": {"bytes": len(packed), "sha256": hashlib.sha256(packed).hexdigest()},
        }
    )
    root = run / FOLDER
    new, final, old = root / f"{_NEW}{step}", root / str(step), root / f"{_OLD}{step}"
    try:
        if not root.is_dir():
            root.mkdir()
            sync_folder(run)
        _tidy(root)
        new.mkdir()
        _write(new / TENSORS_FILE, packed)
        _write(new / STATE_FILE, record)
        sync_folder(new)
        if final.is_dir():
            final.rename(old)
        new.rename(final)
        sync_folder(root)
    except OSError as error:
        with contextlib.suppress(OSError):
            shutil.rmtree(new)
        raise CheckpointError(_not_written(run, step, len(packed) + len(record), error)) from error
    try:
        _tidy(root)
        for oldest in sorted(_folders(run))[:-keep]:
            if oldest < step:
                # Renamed first: half a folder must not look like a checkpoint.
                (root / str(oldest)).rename(root / f"{_NEW}{oldest}")
        _tidy(root)
    except OSError as error:
        raise CheckpointError(
            f"{final} is saved, but an older checkpoint cannot be removed: {error}; make {root} writable"
        ) from error
    return final


def load_checkpoint(run: Path, step: int | None = None) -> tuple[int, dict[str, torch.Tensor], dict[str, Any]]:
    """Return (step, tensors on the CPU, state) of the newest checkpoint of run, or of the one at step.

    Raises CheckpointError when there is none, or when any byte of it is missing or was changed; the message
    names the file and the older checkpoint that is whole.
    """
    folders = _folders(run)
    if not folders:
        raise CheckpointError(f"{run / FOLDER} holds no checkpoint: start a new run")
    if step is None:
        step = max(folders)
    elif step not in folders:
        raise CheckpointError(f"{run / FOLDER} holds no checkpoint of step {step}, only of {_listed(folders)}")
    try:
        return (step, *_read(folders[step], step))
    except CheckpointError as error:
        raise CheckpointError(f"{error}; {_remedy(folders, step)}") from error


def checkpoint_steps(run: Path) -> list[int]:
    """Return the steps that have a checkpoint, oldest first."""
    return sorted(_folders(run))


def _folders(run: Path) -> dict[int, Path]:
    """Return the folder of each step; a replaced one only when a crash kept its successor from its name."""
    root = run / FOLDER
    if not root.is_dir():
        return {}
    names = {path.name for path in root.iterdir() if path.is_dir()}
    found = {int(name): root / name for name in names if _is_step(name)}
    for name in names:
        step = name.removeprefix(_OLD)
        if step != name and _is_step(step):
            found.setdefault(int(step), root / name)
    return found


def _is_step(name: str) -> bool:
    return name.isascii() and name.isdigit() and str(int(name)) == name


def _tidy(root: Path) -> None:
    """Remove what a crash or a save left over; a replaced folder without successor gets its name back."""
    for path in sorted(root.iterdir()):
        final = root / path.name.removeprefix(_OLD)
        if path.name.startswith(_OLD) and not final.exists():
            path.rename(final)
        elif path.name.startswith((_OLD, _NEW)):
            shutil.rmtree(path)


def _write(path: Path, content: bytes) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(file, rest) :]
        os.fsync(file)
    finally:
        os.close(file)


def _canonical(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _sealed(record: dict[str, Any]) -> bytes:
    """Return record as JSON with the hash of everything else in it."""
    sealed = {**record, "sha256": hashlib.sha256(_canonical(record)).hexdigest()}
    return json.dumps(sealed, sort_keys=True, indent=1, allow_nan=False).encode()


def _read(folder: Path, step: int) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return tensors and state of the checkpoint in folder; CheckpointError names file and fault."""
    path = folder / STATE_FILE
    record = _record(path)
    if record.get("schema") != SCHEMA:
        raise CheckpointError(f"{path} has schema {record.get('schema')!r}; this version reads {SCHEMA}")
    seal = record.pop("sha256", None)
    if seal != hashlib.sha256(_canonical(record)).hexdigest():
        raise CheckpointError(f"{path} was changed after it was written: its hash is not the one inside")
    if record["step"] != step:
        raise CheckpointError(f"{path} is of step {record['step']}, but its folder says {step}")
    path = folder / TENSORS_FILE
    packed = _checked(path, path.read_bytes)
    expected = record["tensors"]
    if len(packed) != expected["bytes"]:
        raise CheckpointError(f"{path} is {len(packed)} bytes long, expected {expected['bytes']}: truncated")
    if hashlib.sha256(packed).hexdigest() != expected["sha256"]:
        raise CheckpointError(f"{path} was changed after it was written: its hash differs from {STATE_FILE}'s")
    try:
        return tensors_from_bytes(packed), record["state"]
    except SafetensorError as error:
        raise CheckpointError(f"{path} holds no tensors: {error}") from error


def _record(path: Path) -> dict[str, Any]:
    content = _checked(path, path.read_bytes)
    try:
        record = json.loads(content, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not JSON, truncated or changed: {error}") from error
    if not isinstance(record, dict):
        raise CheckpointError(f"{path} holds {type(record).__name__}, expected a JSON object")
    return record


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _checked(path: Path, read: Callable[[], bytes]) -> bytes:
    try:
        return read()
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def _remedy(folders: Mapping[int, Path], damaged: int) -> str:
    """Return what to do about the damaged checkpoint: the newest older one is named if it is whole."""
    for step in sorted((step for step in folders if step < damaged), reverse=True):
        with contextlib.suppress(CheckpointError):
            _read(folders[step], step)
            later = sorted(other for other in folders if step < other <= damaged)
            return f"delete {' and '.join(str(folders[other]) for other in later)} to continue from step {step}"
    return "no older checkpoint is whole: start a new run"


def _not_written(run: Path, step: int, needed: int, error: OSError) -> str:
    free = shutil.disk_usage(run).free if run.is_dir() else 0
    kept = _folders(run)
    left = f"the checkpoints of {_listed(kept)} are untouched" if kept else "there is no older one"
    return (
        f"the checkpoint of step {step} cannot be written to {run / FOLDER}: {error.strerror or error} "
        f"({needed} bytes needed, {free} free); {left}; make room, then resume"
    )


def _listed(folders: Mapping[int, Path]) -> str:
    return f"step {', '.join(str(step) for step in sorted(folders))}"
