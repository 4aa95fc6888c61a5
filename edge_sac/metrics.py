"""The numbers of a run over its steps: metrics.csv in the run's folder, and the same in TensorBoard's format.

Every record is one line handed to the system in one write, so a killed process loses none and leaves at most
one torn line, which readers drop. A record is of one kind and fills the columns it knows; the others stay
empty.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge_sac.atomic import write_file
from edge_sac.errors import Refused
from edge_sac.events_file import EventsFile

FILE = "metrics.csv"

# train: of the update, at intervals. episode: of one training episode, at its end. eval: of one evaluation.
KINDS = ("train", "eval", "episode")

# Column, unit, meaning. `step` counts environment steps of training; every record has it.
COLUMNS: tuple[tuple[str, str, str], ...] = (
    (
        "episode_return",
        "1",
        "sum of rewards of a training episode, or their mean since the last train record",
    ),
    (
        "success_fraction",
        "1",
        "share of the judged window in which the goal held; a mean where over episodes",
    ),
    ("success_rate", "1", "share of an evaluation's episodes that succeeded"),
    ("return_mean", "1", "mean return of an evaluation's episodes"),
    ("alpha", "1", "temperature: the weight of entropy against reward"),
    ("log_prob", "nat", "mean log-probability of the policy's own actions"),
    ("entropy", "nat", "minus log_prob"),
    ("target_entropy", "nat", "the entropy that alpha is driven to"),
    ("critic_loss", "1", "unscaled loss of both critics"),
    ("actor_loss", "1", "unscaled loss of the actor"),
    ("q_mean", "1", "mean of the critics' values"),
    ("critic_scale", "1", "loss scale of the critics"),
    ("actor_scale", "1", "loss scale of the actor"),
    ("alpha_scale", "1", "loss scale of log alpha"),
    ("skipped_critic", "steps", "critic steps skipped so far for a non-finite gradient"),
    ("skipped_actor", "steps", "actor steps skipped so far"),
    ("skipped_alpha", "steps", "steps of log alpha skipped so far"),
    ("updates", "updates", "updates so far"),
    ("updates_per_s", "1/s", "updates per second since the last train record"),
    ("utd_ratio", "1", "achieved ratio of updates to environment steps since the last train record"),
    ("wall_s", "s", "time spent training, over all resumes"),
)
NAMES = tuple(name for name, _, _ in COLUMNS)
_HEADER = ("step", "kind", *NAMES)


class MetricsLog:
    """The open metrics.csv and TensorBoard log of one run; appends to what an earlier process wrote.

    Raises Refused when the file has other columns or cannot be written. With tensorboard=False only the CSV
    is written; otherwise MissingExtra is raised at the first record if TensorBoard is not installed.
    """

    def __init__(self, run: Path, tensorboard: bool = True) -> None:
        self._run = run
        self._path = run / FILE
        self._tensorboard = tensorboard
        self._events: EventsFile | None = None
        self._purge_step: int | None = None
        try:
            if not self._path.exists() or self._path.stat().st_size == 0:
                write_file(self._path, _lines([_HEADER]))
            else:
                _drop_torn_line(self._path)
                _check_header(self._path)
            self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            raise Refused(f"{self._path} cannot be written: {error.strerror}") from error

    def write(self, kind: str, row: Mapping[str, float]) -> None:
        """Append one record: row has `step` and any of the documented columns, NaN and infinity included.

        Raises ValueError for an unknown kind or column or a missing step, Refused when the disk is full.
        """
        unknown = sorted(set(row) - {"step", *NAMES})
        if kind not in KINDS or unknown or "step" not in row:
            raise ValueError(
                f"a record of kind {kind!r} with columns {sorted(row)}: the kind must be one of {KINDS}, "
                f"`step` must be there, and these columns are unknown: {unknown}"
            )
        step = int(row["step"])
        values = [repr(float(row[name])) if name in row else "" for name in NAMES]
        line = _lines([(str(step), kind, *values)])
        try:
            written = os.write(self._file, line)
        except OSError as error:
            raise Refused(f"{self._path} cannot be written: {error.strerror}; make room, then resume") from error
        if written != len(line):
            raise Refused(f"{self._path}: {written} of {len(line)} bytes written: the disk is full; make room")
        if self._tensorboard:
            self._show(step, {f"{kind}/{name}": float(row[name]) for name in row if name != "step"})

    def _show(self, step: int, values: Mapping[str, float]) -> None:
        try:
            if self._events is None:
                self._events = EventsFile(self._run, self._purge_step)
            self._events.write(step, values)
        except OSError as error:
            raise Refused(f"{self._run}: no events can be written: {error.strerror}; make room, then resume") from error

    def truncate_after(self, step: int) -> None:
        """Forget the records after step, which a resumed run writes again; call it before the first write."""
        os.close(self._file)
        self._file = -1
        kept = [row for row in _rows(self._path) if int(row[0]) <= step]
        write_file(self._path, _lines([_HEADER, *kept]))
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self._purge_step = step + 1

    def flush(self) -> None:
        """Force what was written to the disk, against a power cut."""
        os.fsync(self._file)

    def close(self) -> None:
        """Force everything to the disk and let go of the files; a second call does nothing."""
        if self._file >= 0:
            os.fsync(self._file)
            os.close(self._file)
            self._file = -1
        if self._events is not None:
            self._events.close()
            self._events = None


def read_metrics(run: Path) -> dict[str, NDArray[Any]]:
    """Return the records in file order as columns [N]: step int64, kind str, the others float64.

    What a record did not fill is NaN; a torn last line, left by a killed process, is dropped. Raises Refused
    when there is no file or it is not ours.
    """
    path = run / FILE
    if not path.is_file():
        raise Refused(f"{path} is missing: {run} holds no run")
    _check_header(path)
    rows = list(_rows(path))
    columns: dict[str, NDArray[Any]] = {
        "step": np.array([int(row[0]) for row in rows], dtype=np.int64),
        "kind": np.array([row[1] for row in rows], dtype=np.str_),
    }
    for i, name in enumerate(NAMES, start=2):
        columns[name] = np.array([float(row[i]) if row[i] else np.nan for row in rows], dtype=np.float64)
    return columns


def _rows(path: Path) -> Iterator[list[str]]:
    """Yield the records of a metrics file; a torn last line is none. Raises Refused naming a damaged line."""
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    records = csv.reader(io.StringIO(whole.decode(errors="replace")))
    try:
        for row in records:
            if records.line_num == 1:
                continue
            if len(row) != len(_HEADER) or row[1] not in KINDS or int(row[0]) < 0:
                raise ValueError("wrong number of columns, kind or step")
            for value in row[2:]:
                float(value or "nan")
            yield row
    except (ValueError, csv.Error) as error:
        raise Refused(f"{path} line {records.line_num} is no record ({error}): delete that line") from error


def _check_header(path: Path) -> None:
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        header = tuple(next(csv.reader(file), ()))
    if header != _HEADER:
        raise Refused(f"{path} has other columns than this version writes: start a new run, or use that version")


def _lines(rows: Sequence[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _drop_torn_line(path: Path) -> None:
    content = path.read_bytes()
    if not content.endswith(b"\n"):
        os.truncate(path, content.rfind(b"\n") + 1)
