"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def write_file(path: Path, data: bytes, check: Callable[[Path], object] | None = None) -> None:
    """Put `data` at `path`: written beside it, forced to the disk, given to `check` where it lies, renamed.

    Raises OSError, or whatever `check` raises of the file it is given; an old file then stays.
    """
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with fresh.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if check is not None:
            check(fresh)
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Force the names in `folder` to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
