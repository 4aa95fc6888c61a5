"""The memory that holds a replay: one map of fixed-size rows behind a header, anonymous or a file.

The hard idea is the order of stores. A process killed at any moment leaves its stores in the map in program
order, so `claim` is stored before a row is overwritten, the rows follow, and a single 8-byte store (the
commit number, which selects one of two records) makes them count. Whoever opens the file later believes the
header alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from edge_sac.atomic import sync_folder
from edge_sac.errors import Refused, ReplayError

HalfOrSingle = Literal["float16", "float32"]

MAGIC = b"ESACRPLY"
SCHEMA = 1
HEADER_BYTES = 4096
# Magic, schema, bytes per value, observations, actions, bytes per row, zero, capacity.
_SHAPE = struct.Struct("<8s6IQ")
_SHAPE_CRC = struct.Struct("<I")
_INDEX_AT = 64  # six u64: claimed, commit, then (written, added) of even and of odd commits


@dataclass(frozen=True)
class RowLayout:
    """Where each part of a row lies: reward f4, obs, action, flags u2, padded to a multiple of 4 bytes."""

    capacity: int
    obs_dim: int
    action_dim: int
    dtype: HalfOrSingle

    @property
    def value_bytes(self) -> int:
        return int(np.dtype(self.dtype).itemsize)

    @property
    def action_at(self) -> int:
        return 4 + self.value_bytes * self.obs_dim

    @property
    def flags_at(self) -> int:
        return self.action_at + self.value_bytes * self.action_dim

    @property
    def row_bytes(self) -> int:
        return -(-(self.flags_at + 2) // 4) * 4

    @property
    def slots(self) -> int:
        """One more than the transitions of an unbroken episode: its final observation needs a row."""
        return self.capacity + 1

    @property
    def map_bytes(self) -> int:
        return HEADER_BYTES + self.slots * self.row_bytes

    def views(self, rows: NDArray[np.uint8]) -> RowViews:
        """Return the parts of rows, uint8 [N, row_bytes], as views of the same memory."""
        values = f"<f{self.value_bytes}"
        return RowViews(
            reward=rows[:, 0:4].view("<f4")[:, 0],
            obs=rows[:, 4 : self.action_at].view(values),
            action=rows[:, self.action_at : self.flags_at].view(values),
            flags=rows[:, self.flags_at : self.flags_at + 2].view("<u2")[:, 0],
        )


@dataclass(frozen=True)
class RowViews:
    """Views of N rows: reward [N] float32, obs [N, O], action [N, A], flags [N] uint16."""

    reward: NDArray[Any]
    obs: NDArray[Any]
    action: NDArray[Any]
    flags: NDArray[Any]


class ReplayMap:
    """One map of rows: anonymous memory without a path, a locked file with one.

    A new file's disk space is reserved before its name appears, and every page is touched, so that a full
    disk or too little memory is met here. Raises Refused when the space is not to be had, when an existing
    file is another shape, cut short or damaged, or when another process has it open.
    """

    def __init__(self, layout: RowLayout, path: Path | None) -> None:
        self.layout = layout
        self.path = path
        self._file = -1
        if path is None:
            try:
                self._map = mmap.mmap(-1, layout.map_bytes)
            except (OSError, OverflowError, ValueError) as error:
                raise Refused(_too_large(layout, "of memory", str(error))) from error
        else:
            if not path.exists():
                _create(path, layout)
            self._file = _open_locked(path)
            try:
                _check(self._file, path, layout)
                self._map = mmap.mmap(self._file, layout.map_bytes)
            except BaseException:
                os.close(self._file)
                raise
        self._closed = False
        everything = np.frombuffer(self._map, dtype=np.uint8)
        pages = everything[:: mmap.PAGESIZE]
        np.bitwise_or(pages, 0, out=pages)
        self._index = memoryview(self._map)[_INDEX_AT : _INDEX_AT + 48].cast("Q")
        self.rows: NDArray[np.uint8] = everything[HEADER_BYTES:].reshape(layout.slots, layout.row_bytes)
        self.parts = layout.views(self.rows)
        self._check_index()

    @property
    def claimed(self) -> int:
        """Rows ever written or begun; what row `claimed - slots` held is gone."""
        return self._index[0]

    @property
    def written(self) -> int:
        """Rows ever written whole."""
        return self._index[2 + 2 * (self._commit & 1)]

    @property
    def added(self) -> int:
        """Transitions ever added."""
        return self._index[3 + 2 * (self._commit & 1)]

    @property
    def _commit(self) -> int:
        return self._index[1]

    def claim(self, written: int) -> None:
        """Declare the rows below `written` about to be overwritten."""
        self._index[0] = written

    def commit(self, written: int, added: int) -> None:
        """Make the rows below `written` count, by one 8-byte store."""
        commit = self._commit + 1
        record = 2 + 2 * (commit & 1)
        self._index[record] = written
        self._index[record + 1] = added
        self._index[1] = commit

    def sync(self) -> None:
        """Force the map to the disk: a killed process does not need it, a power cut does."""
        if self._file >= 0:
            self._map.flush()

    def close(self) -> None:
        """Write everything to the disk and let go of memory, file and lock; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        self.sync()
        # Views may live on in a traceback: the memory is let go, not torn away, but the lock at once.
        nothing = np.empty((0, self.layout.row_bytes), dtype=np.uint8)
        self.rows = nothing
        self.parts = self.layout.views(nothing)
        self._index.release()
        if self._file >= 0:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)
            self._file = -1
        self._map = mmap.mmap(-1, mmap.PAGESIZE)

    def _check_index(self) -> None:
        claimed, written, added = self.claimed, self.written, self.added
        if not (written <= claimed <= written + 2 and added <= written):
            self.close()
            raise Refused(
                f"{self.path}: the header counts {written} rows, {claimed} begun, {added} transitions: "
                "no run can leave that; delete the damaged file to go on with an empty replay"
            )


def _create(path: Path, layout: RowLayout) -> None:
    """Make the file whole under another name, then give it its own: a half-made one is never opened."""
    new = path.with_name(path.name + ".new")
    try:
        file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise Refused(f"{new}: the replay file cannot be made: {error.strerror}") from error
    try:
        disk = os.fstatvfs(file)
        free = disk.f_bavail * disk.f_frsize
        os.posix_fallocate(file, 0, layout.map_bytes)
        shape = _shape(layout)
        os.pwrite(file, shape + _SHAPE_CRC.pack(zlib.crc32(shape)), 0)
        os.fsync(file)
        new.rename(path)
    except OSError as error:
        with contextlib.suppress(FileNotFoundError):
            new.unlink()
        raise Refused(_too_large(layout, f"on disk, {free} are free at {path.parent}", str(error))) from error
    finally:
        os.close(file)
    sync_folder(path.parent)


def _too_large(layout: RowLayout, where: str, cause: str) -> str:
    return (
        f"a replay of {layout.capacity} transitions needs {layout.map_bytes} bytes {where} ({cause}): "
        f"lower the capacity ({layout.row_bytes} bytes each) or make room"
    )


def _open_locked(path: Path) -> int:
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise Refused(f"{path}: the replay file cannot be opened: {error.strerror}") from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(file)
        raise Refused(f"{path}: another process is using this replay; stop that run first") from error
    return file


def _shape(layout: RowLayout) -> bytes:
    return _SHAPE.pack(
        MAGIC,
        SCHEMA,
        layout.value_bytes,
        layout.obs_dim,
        layout.action_dim,
        layout.row_bytes,
        0,
        layout.capacity,
    )


def _check(file: int, path: Path, layout: RowLayout) -> None:
    """Raise Refused unless the header of file describes exactly this layout and no byte is missing."""
    header = os.pread(file, _SHAPE.size + _SHAPE_CRC.size, 0)
    if len(header) < _SHAPE.size + _SHAPE_CRC.size or not header.startswith(MAGIC):
        raise Refused(f"{path}: not a replay file (it begins with {header[:8]!r}, expected {MAGIC!r})")
    shape, crc = header[: _SHAPE.size], header[_SHAPE.size :]
    if _SHAPE_CRC.unpack(crc)[0] != zlib.crc32(shape):
        raise Refused(f"{path}: the header is damaged; delete the file to go on with an empty replay")
    _, schema, value_bytes, obs_dim, action_dim, row_bytes, _, capacity = _SHAPE.unpack(shape)
    pairs = (
        ("schema", schema, SCHEMA),
        ("bytes per value", value_bytes, layout.value_bytes),
        ("observations", obs_dim, layout.obs_dim),
        ("actions", action_dim, layout.action_dim),
        ("capacity", capacity, layout.capacity),
        ("bytes per row", row_bytes, layout.row_bytes),
    )
    wrong = [f"{name} {held} (asked for {asked})" for name, held, asked in pairs if held != asked]
    if wrong:
        raise Refused(f"{path}: holds a replay with {', '.join(wrong)}; ask for what it has, or start a new run")
    size = os.fstat(file).st_size
    if size != layout.map_bytes:
        raise Refused(
            f"{path}: {size} bytes long, {layout.map_bytes} expected; it was cut short or added to: "
            "delete it to go on with an empty replay"
        )


def layout_of(capacity: int, obs_dim: int, action_dim: int, dtype: str) -> RowLayout:
    """Return the layout of a row. Raises ReplayError for a size below 1 or a dtype other than the two."""
    for name, value in (("capacity", capacity), ("obs_dim", obs_dim), ("action_dim", action_dim)):
        if value < 1:
            raise ReplayError(f"replay {name} is {value}; it must be at least 1")
    if dtype == "float16":
        return RowLayout(capacity, obs_dim, action_dim, "float16")
    if dtype == "float32":
        return RowLayout(capacity, obs_dim, action_dim, "float32")
    raise ReplayError(f"replay dtype is {dtype!r}; it must be 'float16' or 'float32'")
