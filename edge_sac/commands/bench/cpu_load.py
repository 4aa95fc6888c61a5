"""Who uses the processors: the machine's account of time, a process's own, and which processors are quiet."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from edge_sac.errors import Refused

CLEAN_CORES = 0.15
"""A window in which others used more of a core than this is not clean."""
LOOK_S = 0.25
"""How long the machine is looked at to see whether it is quiet; its clock ticks every 10 ms."""
PROC = Path("/proc")
# Of a line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal; guest time is in user's already.
_IDLE, _IOWAIT, _FIELDS = 3, 4, 8


def busy_seconds(proc: Path = PROC) -> dict[int, float]:
    """Return the time each processor has spent on anything but idling, stolen time included [s]."""
    found = {}
    for line in (proc / "stat").read_text().splitlines():
        name, *ticks = line.split()
        if name.startswith("cpu") and name != "cpu":
            spent = [int(tick) for tick in ticks[:_FIELDS]]
            found[int(name[3:])] = (sum(spent) - spent[_IDLE] - spent[_IOWAIT]) / os.sysconf("SC_CLK_TCK")
    return found


def process_seconds(pid: int, proc: Path = PROC) -> float:
    """Return the processor time of a process, all threads, user and system [s]; 0 for one that is gone."""
    try:
        stat = (proc / str(pid) / "stat").read_text()
    except FileNotFoundError:
        return 0.0
    # The name, in parentheses, may hold spaces and parentheses; state is the first field behind it.
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Others:
    """How many cores everybody else uses, from when this is made until it is asked."""

    def __init__(self, ours: Iterable[int]) -> None:
        self._ours = [os.getpid(), *ours]
        self._busy, self._own, self._began = self._read()

    def _read(self) -> tuple[float, float, float]:
        own = sum(process_seconds(pid) for pid in self._ours)
        return sum(busy_seconds().values()), own, time.perf_counter()

    def cores(self) -> float:
        """Return the mean number of cores in use by processes that are not ours, at least 0."""
        busy, own, now = self._read()
        return max(0.0, (busy - self._busy) - (own - self._own)) / max(now - self._began, 1e-9)


def quiet_cpus(patience: float) -> tuple[list[int], float]:
    """Wait until others use less than CLEAN_CORES, at most `patience` [s] and one look at the machine.

    Returns the processors we may use, the quietest first, and how long the wait was [s].
    """
    began = time.monotonic()
    while True:
        before, others = busy_seconds(), Others(())
        time.sleep(LOOK_S)
        after = busy_seconds()
        waited = time.monotonic() - began
        if others.cores() < CLEAN_CORES or waited >= patience:
            allowed = os.sched_getaffinity(0)
            return sorted(allowed, key=lambda cpu: after.get(cpu, 0.0) - before.get(cpu, 0.0)), waited


def pin(pid: int, cpus: Collection[int]) -> None:
    """Let every thread of a process run on `cpus` alone."""
    for task in (PROC / str(pid) / "task").iterdir():
        try:
            os.sched_setaffinity(int(task.name), cpus)
        except ProcessLookupError:  # the thread ended meanwhile
            continue


class BusyCore:
    """A process that holds one core whenever it is let run: the control loop beside a learner."""

    _LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(10_000))\n"

    def __init__(self) -> None:
        """Start it, stopped, on the last of the processors we may use. Raises Refused where there is only one."""
        cpus = sorted(os.sched_getaffinity(0))
        if len(cpus) < 2:
            raise Refused("one processor only: a busy core beside the learner needs two")
        self._process = subprocess.Popen([sys.executable, "-c", self._LOOP], start_new_session=True)
        self.stop()
        pin(self._process.pid, cpus[-1:])

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def go(self) -> None:
        """Let it run."""
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Halt it where it is."""
        self._process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        """End it; a second call does nothing."""
        self._process.kill()
        self._process.wait(5.0)
