"""What can still be had is the least of what the system and each control group leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_sac.memory_available import Memory, available_memory, resident_memory

MEMINFO = "MemTotal:  8000 kB\nMemFree:  100 kB\nMemAvailable:  2000 kB\n"


def machine(root: Path, cgroup: str, files: dict[str, str]) -> Path:
    """Return a root with these files of /proc and /sys below it."""
    written = {"proc/meminfo": MEMINFO, "proc/self/cgroup": cgroup} | {
        f"sys/fs/cgroup/{k}": v for k, v in files.items()
    }
    for name, text in written.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_available_counts_not_free(tmp_path: Path) -> None:
    assert available_memory(machine(tmp_path, "", {})) == Memory(2000 * 1024, "MemAvailable")


def test_limit_of_a_group_counts_where_it_is_smaller_and_what_its_files_take_is_given_up(tmp_path: Path) -> None:
    root = machine(
        tmp_path,
        "0::/user/app\n",
        {
            "user/app/memory.max": "1000000\n",
            "user/app/memory.current": "700000\n",
            "user/app/memory.stat": "anon 400000\nactive_file 30000\ninactive_file 60000\n",
        },
    )
    assert available_memory(root) == Memory(390_000, "memory.max of /sys/fs/cgroup/user/app")


def test_no_limit_and_a_limit_beyond_the_system_leave_the_system_s(tmp_path: Path) -> None:
    files = {"app/memory.max": "max\n", "app/memory.current": "700\n"}
    assert available_memory(machine(tmp_path / "a", "0::/app\n", files)).source == "MemAvailable"
    files["app/memory.max"] = str(2**40)
    assert available_memory(machine(tmp_path / "b", "0::/app\n", files)).source == "MemAvailable"


def test_limit_of_a_parent_binds_its_children(tmp_path: Path) -> None:
    files = {"a/memory.max": "5000\n", "a/memory.current": "1000\n", "a/b/memory.max": "9000\n"}
    files["a/b/memory.current"] = "1000\n"
    assert available_memory(machine(tmp_path, "0::/a/b\n", files)).bytes == 4000


def test_in_a_container_the_mount_itself_is_the_group(tmp_path: Path) -> None:
    files = {"memory.max": "5000\n", "memory.current": "1000\n"}
    assert available_memory(machine(tmp_path, "0::/docker/of/the/host\n", files)).bytes == 4000


def test_old_groups_are_read_too(tmp_path: Path) -> None:
    files = {
        "memory/app/memory.limit_in_bytes": "9000\n",
        "memory/app/memory.usage_in_bytes": "5000\n",
        "memory/app/memory.stat": "inactive_file 1\ntotal_inactive_file 300\ntotal_active_file 200\n",
    }
    root = machine(tmp_path, "9:name=systemd:/\n4:cpu,memory:/app\n0::/\n", files)
    assert available_memory(root) == Memory(4500, "memory.limit_in_bytes of /sys/fs/cgroup/memory/app")


def test_more_used_than_the_limit_leaves_nothing(tmp_path: Path) -> None:
    files = {"app/memory.max": "5000\n", "app/memory.current": "6000\n"}
    assert available_memory(machine(tmp_path, "0::/app\n", files)).bytes == 0


def test_this_machine_s_own_numbers_are_plausible() -> None:
    assert 2**20 < available_memory().bytes < 2**50
    assert 2**20 < resident_memory("RssAnon") < resident_memory() < 2**40


def test_unknown_field_is_refused() -> None:
    with pytest.raises(KeyError, match="VmNonsense"):
        resident_memory("VmNonsense")
