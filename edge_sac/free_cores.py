"""How many processor cores this process can really have: allowed, within its quota, and not busy with others' work.

The sources are Linux's: the affinity mask, the bandwidth limits of the control groups, and the ticks in /proc/stat.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

WINDOW = 0.25
"""[s] Over which others' work is measured: 25 ticks a core."""
SPARE = 0.25
"""Of a core: so much of others' work, over all cores, is background and costs none."""
_STAT = Path("/proc/stat")
_GROUPS = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Cores:
    """What there is and what is left of it."""

    allowed: int
    """Cores this process may run on."""
    quota: float
    """Cores' worth of time its control groups allow; infinite without a limit."""
    idle: float
    """Cores' worth of time that nobody used of the allowed ones."""

    @property
    def free(self) -> int:
        """Return how many cores are left for this process, at least one."""
        return max(1, int(min(self.allowed, self.quota, self.idle + SPARE)))

    def __str__(self) -> str:
        limit = "" if self.quota >= self.allowed else f", a quota of {self.quota:g}"
        return f"{self.free} of {self.allowed} cores free ({self.idle:.1f} idle{limit})"


def measure_cores(window: float = WINDOW) -> Cores:
    """Return the cores of this process; it sleeps for `window` [s], so that its own work is not counted as others'."""
    mine = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    before = _ticks()
    time.sleep(window)
    return Cores(len(mine), quota(), idle_cores(before, _ticks(), mine))


def _ticks() -> dict[int, tuple[int, int]]:
    try:
        return core_ticks(_STAT.read_text(encoding="ascii"))
    except OSError:
        return {}


def core_ticks(stat: str) -> dict[int, tuple[int, int]]:
    """Return (idle, all) ticks since boot of each core in the text of /proc/stat (proc_stat(5))."""
    found = {}
    for line in stat.splitlines():
        name, _, rest = line.partition(" ")
        if name.startswith("cpu") and name[3:].isdigit():
            # user nice system idle iowait irq softirq steal; what a guest takes is in user already.
            counts = [int(count) for count in rest.split()[:8]]
            found[int(name[3:])] = (sum(counts[3:5]), sum(counts))
    return found


def idle_cores(before: Mapping[int, tuple[int, int]], after: Mapping[int, tuple[int, int]], cores: list[int]) -> float:
    """Return how many of `cores` were idle between two readings; a core that was not read counts as idle."""
    idle = 0.0
    for core in cores:
        (idle_then, all_then), (idle_now, all_now) = before.get(core, (0, 0)), after.get(core, (0, 0))
        passed = all_now - all_then
        idle += min(1.0, max(0.0, (idle_now - idle_then) / passed)) if passed > 0 else 1.0
    return idle


def quota(groups: Path = _GROUPS, mount: Path = _MOUNT) -> float:
    """Return the cores' worth of time that this process's control groups, or those above them, allow."""
    try:
        lines = groups.read_text(encoding="ascii").splitlines()
    except OSError:
        return float("inf")
    least = float("inf")
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, read = mount, _quota_v2
        elif "cpu" in controllers.split(","):
            root, read = mount / controllers, _quota_v1
            root = root if root.is_dir() else mount / "cpu"
        else:
            continue
        group = root / path.strip("/")
        # A container sees its own group as the root, whatever its path is called outside.
        for folder in (group, *group.parents):
            least = min(least, read(folder))
            if folder == root:
                break
    return least


def _quota_v2(group: Path) -> float:
    try:
        given, period = (group / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return float("inf")
    return float("inf") if given == "max" else int(given) / int(period)


def _quota_v1(group: Path) -> float:
    try:
        given, period = (int((group / f"cpu.cfs_{of}_us").read_text(encoding="ascii")) for of in ("quota", "period"))
    except (OSError, ValueError):
        return float("inf")
    return float("inf") if given < 0 else given / period
