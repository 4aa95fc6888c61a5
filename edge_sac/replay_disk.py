"""The bytes that hold a replay, anonymous or a file: they change by `write` alone, and `sync` is the only barrier.

Between two syncs the system may put any page on the disk, in any state it had since the last one, and a power cut may
leave any mixture of these. Whatever is promised about power loss is an order of writes and syncs; `replay_journal`
holds it, and its tests record both here.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edge_sac.atomic import sync_folder
from edge_sac.errors import Refused


class ReplayDisk:
    """`size` bytes: memory without a path, else a locked file, made with `header` at its start where there is none.

    An existing file is mapped once `check`, given its first page and its size, has not raised. A new file's disk space
    is reserved before its name appears, and memory without a file is touched, so that a full disk or too little memory
    is met here. `what` describes the content for messages. Raises Refused when the space is not to be had, or when
    another process has the file open.
    """

    def __init__(
        self, size: int, path: Path | None, header: bytes, check: Callable[[bytes, int], None], what: str
    ) -> None:
        self._file = -1
        if path is None:
            try:
                self.memory = mmap.mmap(-1, size)
            except (OSError, OverflowError, ValueError) as error:
                raise Refused(_too_large(what, size, "of memory", str(error))) from error
            pages = np.frombuffer(self.memory, dtype=np.uint8)[:: mmap.PAGESIZE]
            np.bitwise_or(pages, 0, out=pages)
            self.write(0, header)
            return
        if not path.exists():
            _create(path, size, header, what)
        self._file = _open_locked(path)
        try:
            check(os.pread(self._file, len(header), 0), os.fstat(self._file).st_size)
            self.memory = mmap.mmap(self._file, size)
        except BaseException:
            os.close(self._file)
            raise

    @property
    def durable(self) -> bool:
        """True for a file, which `sync` brings to the disk."""
        return self._file >= 0

    def view(self, at: int, rows: int, row_bytes: int) -> NDArray[np.uint8]:
        """Return rows from byte `at` on as uint8 [rows, row_bytes], not to be written to."""
        found = np.frombuffer(self.memory, dtype=np.uint8)[at : at + rows * row_bytes].reshape(rows, row_bytes)
        found.flags.writeable = False
        return found

    def write(self, at: int, data: bytes | bytearray) -> None:
        """Put data at byte `at`. A killed process leaves what it wrote, in the order it wrote."""
        self.memory[at : at + len(data)] = data

    def sync(self) -> None:
        """Wait until everything written before this call is on the disk. Raises OSError.

        On Linux this covers what was stored through the map; unlike msync from Python it lets other threads go on.
        """
        if self._file >= 0:
            os.fdatasync(self._file)

    def close(self) -> None:
        """Let go of memory, file and lock; a second call does nothing."""
        if self._file >= 0:
            fcntl.flock(self._file, fcntl.LOCK_UN)
            os.close(self._file)
            self._file = -1
        # Views may live on in a traceback: the memory is let go, not torn away.
        self.memory = mmap.mmap(-1, mmap.PAGESIZE)


def _create(path: Path, size: int, header: bytes, what: str) -> None:
    """Make the file whole under another name, then give it its own: a half-made one is never opened."""
    new = path.with_name(path.name + ".new")
    try:
        file = os.open(new, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise Refused(f"{new}: the replay file cannot be made: {error.strerror}") from error
    try:
        disk = os.fstatvfs(file)
        free = disk.f_bavail * disk.f_frsize
        os.posix_fallocate(file, 0, size)
        os.pwrite(file, header, 0)
        os.fsync(file)
        new.rename(path)
    except OSError as error:
        with contextlib.suppress(FileNotFoundError):
            new.unlink()
        raise Refused(_too_large(what, size, f"on disk, {free} are free at {path.parent}", str(error))) from error
    finally:
        os.close(file)
    sync_folder(path.parent)


def _too_large(what: str, size: int, where: str, cause: str) -> str:
    return f"{what} needs {size} bytes {where} ({cause}): lower the capacity or make room"


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
