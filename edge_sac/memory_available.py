"""How much memory a process can still take: what the system has, or what its control group leaves where that is less.

MemAvailable, not MemFree: what the system keeps files in is given up when asked for. On a Jetson the GPU takes from
the same memory, and CUDA's own figure leaves out what could be given up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_V1_FILES = ("memory.limit_in_bytes", "memory.usage_in_bytes")
_V2_FILES = ("memory.max", "memory.current")


@dataclass(frozen=True)
class Memory:
    """Bytes, and who says so."""

    bytes: int
    source: str


def available_memory(root: Path = Path("/")) -> Memory:
    """Return what can be had without swapping, as proc(5) and cgroups(7) tell it below `root`."""
    return min([_of_the_system(root), *_of_groups(root)], key=lambda memory: memory.bytes)


def resident_memory(field: str = "VmRSS", root: Path = Path("/")) -> int:
    """Return the bytes this process holds, or another size in proc(5)'s status; raises KeyError for none of them."""
    return _fields(root / "proc/self/status")[field] * 1024


def gpu_left() -> int | None:
    """Return what a GPU with memory of its own has left for torch; None without one, or where it shares the CPU's."""
    import torch

    if not torch.cuda.is_available() or getattr(torch.cuda.get_device_properties(0), "is_integrated", False):
        return None
    free, _ = torch.cuda.mem_get_info()
    return int(free) + torch.cuda.memory_reserved()


def _of_the_system(root: Path) -> Memory:
    available = _fields(root / "proc/meminfo").get("MemAvailable")
    if available is None:
        return Memory(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), "free pages")
    return Memory(available * 1024, "MemAvailable")


def _of_groups(root: Path) -> Iterator[Memory]:
    """Yield what each limit on this process leaves; a parent's limit binds its children."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, names = root / "sys/fs/cgroup", _V2_FILES
        elif "memory" in controllers.split(","):
            mount, names = root / "sys/fs/cgroup/memory", _V1_FILES
        else:
            continue
        group = mount / path.lstrip("/")
        # In a container the path may be the host's, and what is mounted is the group itself.
        for folder in (group, *group.parents):
            if folder.is_relative_to(mount):
                yield from _left(folder, *names, root)


def _left(folder: Path, limit: str, usage: str, root: Path) -> Iterator[Memory]:
    maximum, current = _text(folder / limit).strip(), _text(folder / usage).strip()
    if not (maximum.isdigit() and current.isdigit()):  # no such file, or the word max
        return
    stat = _fields(folder / "memory.stat")
    # What the group's files are kept in is given up like the system's; v1 counts children in the total_ fields.
    given_up = sum(stat.get(f"total_{name}", stat.get(name, 0)) for name in ("inactive_file", "active_file"))
    left = int(maximum) - int(current) + given_up
    yield Memory(max(0, left), f"{limit} of /{folder.relative_to(root)}")


def _fields(path: Path) -> dict[str, int]:
    """Return the numbers of a file of lines `name number` or `name: number unit`."""
    found = {}
    for line in _text(path).splitlines():
        name, *rest = line.replace(":", " ").split() or [""]
        if rest and rest[0].isdigit():
            found[name] = int(rest[0])
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
