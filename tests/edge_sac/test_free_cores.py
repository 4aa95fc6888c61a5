"""A core is free when this process may use it and nobody else does."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from edge_sac.free_cores import Cores, core_ticks, idle_cores, measure_cores, quota

THEN = """cpu  300 0 100 1000 10 0 0 0 0 0
cpu0 100 0 50 500 5 0 0 0 0 0
cpu1 200 0 50 500 5 0 0 0 0 0
intr 12345 0 0
"""
NOW = """cpu  330 0 100 1070 10 0 0 0 0 0
cpu0 100 0 50 520 10 0 0 0 0 0
cpu1 225 0 50 500 5 0 0 0 0 0
intr 12346 0 0
"""


def test_core_is_idle_for_the_share_of_ticks_it_waited() -> None:
    then, now = core_ticks(THEN), core_ticks(NOW)
    assert then == {0: (505, 655), 1: (505, 755)}
    assert idle_cores(then, now, [0, 1]) == 1.0
    assert idle_cores(then, now, [1]) == 0.0


def test_stolen_time_is_not_idle() -> None:
    assert idle_cores({0: (0, 0)}, core_ticks("cpu0 0 0 0 60 0 0 0 40 0 0"), [0]) == pytest.approx(0.6)


def test_core_without_a_reading_counts_as_idle() -> None:
    assert idle_cores({}, {}, [0, 1, 5]) == 3.0


@pytest.mark.parametrize(
    ("cores", "free"),
    [
        pytest.param(Cores(2, float("inf"), 2.0), 2, id="nothing else runs"),
        pytest.param(Cores(2, float("inf"), 1.76), 2, id="a little background costs no core"),
        pytest.param(Cores(2, float("inf"), 1.74), 1, id="more than that does"),
        pytest.param(Cores(2, float("inf"), 1.0), 1, id="a neighbour holds one"),
        pytest.param(Cores(2, float("inf"), 0.0), 1, id="all are busy"),
        pytest.param(Cores(8, 2.5, 8.0), 2, id="a quota is rounded down"),
        pytest.param(Cores(8, 0.5, 8.0), 1, id="a quota under one core"),
    ],
)
def test_cores_free_are_the_least_of_mask_quota_and_idle(cores: Cores, free: int) -> None:
    assert cores.free == free


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    mount = tmp_path / "cgroup"
    (mount / "robot" / "learner").mkdir(parents=True)
    (tmp_path / "self").write_text("0::/robot/learner\n")
    (mount / "robot" / "learner" / "cpu.max").write_text("max 100000\n")
    return tmp_path


def test_quota_is_the_least_of_all_groups_above(groups: Path) -> None:
    assert quota(groups / "self", groups / "cgroup") == float("inf")
    (groups / "cgroup" / "robot" / "cpu.max").write_text("150000 100000\n")
    assert quota(groups / "self", groups / "cgroup") == 1.5
    (groups / "cgroup" / "cpu.max").write_text("50000 100000\n")
    assert quota(groups / "self", groups / "cgroup") == 0.5


@pytest.mark.parametrize("mounted", ["cpu", "cpu,cpuacct"])
def test_quota_of_the_first_version_of_control_groups_is_read(tmp_path: Path, mounted: str) -> None:
    group = tmp_path / mounted / "robot"
    group.mkdir(parents=True)
    (tmp_path / "self").write_text("12:pids:/other\n3:cpu,cpuacct:/robot\n")
    (group / "cpu.cfs_period_us").write_text("100000\n")
    (group / "cpu.cfs_quota_us").write_text("-1\n")
    assert quota(tmp_path / "self", tmp_path) == float("inf")
    (group / "cpu.cfs_quota_us").write_text("200000\n")
    assert quota(tmp_path / "self", tmp_path) == 2.0


def test_no_control_groups_are_no_limit(tmp_path: Path) -> None:
    assert quota(tmp_path / "absent", tmp_path) == float("inf")


@pytest.fixture
def neighbour() -> Iterator[int]:
    """Return the core that a process of its own keeps busy."""
    core = min(os.sched_getaffinity(0))
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as process:
        os.sched_setaffinity(process.pid, {core})
        try:
            yield core
        finally:
            process.kill()


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="needs Linux's /proc/stat")
def test_process_that_holds_a_core_takes_it_from_what_is_free(neighbour: int) -> None:
    """Whatever else runs can only take more."""
    cores = measure_cores()
    assert cores.idle <= cores.allowed - 0.75, neighbour
    assert cores.free <= max(1, cores.allowed - 1)
