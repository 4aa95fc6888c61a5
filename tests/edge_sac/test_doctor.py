"""Every line of doctor can fail, and then carries the command that mends it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from edge_sac.commands import doctor
from edge_sac.commands.doctor import Line
from edge_sac.memory_available import Memory


def named(lines: Iterable[Line], name: str) -> Line:
    return next(line for line in lines if line.name == name)


def test_every_line_that_is_not_ok_has_a_remedy_and_every_line_a_message(tmp_path: Path) -> None:
    lines = doctor.doctor_lines(tmp_path / "runs")
    assert all(line.message for line in lines)
    assert all(line.remedy for line in lines if not line.ok)
    assert {line.name for line in lines} >= {
        "python",
        "torch",
        "onnxruntime",
        "physics",
        "memory",
        "disk",
        "runs",
    }


def test_doctor_makes_no_folder(tmp_path: Path) -> None:
    doctor.doctor_lines(tmp_path / "deep" / "runs")
    assert list(tmp_path.iterdir()) == []


def test_missing_option_is_a_warning_and_missing_need_a_failure() -> None:
    assert not Line("physics", False, "equations", "pip install", required=False).failed
    assert Line("onnxruntime", False, "not installed", "pip install").failed


@pytest.mark.parametrize(("version", "ok"), [((3, 9), False), ((3, 10), True), ((3, 13), True), ((3, 14), False)])
def test_python_is_supported_from_3_10_to_3_13(version: tuple[int, int], ok: bool) -> None:
    assert doctor.python_line(version).ok == ok


def test_another_owner_of_a_name_is_a_failure_that_names_it() -> None:
    lines = doctor.ownership_lines({"robots": ["django-robots", "edge_sac"], "sim": ["edge-sac"]})
    taken = named(lines, "name robots")
    assert taken.failed
    assert "pip uninstall django-robots &&" in taken.remedy
    assert named(lines, "name sim").ok


def test_both_runtimes_at_once_are_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_installed", lambda _name: True)
    (line,) = doctor.runtime_lines()
    assert line.failed
    assert "pip uninstall onnxruntime onnxruntime-gpu" in line.remedy


def test_missing_runtime_is_a_failure_and_missing_torch_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_installed", lambda _name: False)
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda _name: None)
    (runtime,) = doctor.runtime_lines()
    (torch,) = doctor.torch_lines()
    assert runtime.failed
    assert (torch.ok, torch.failed) == (False, False)


def test_provider_that_fell_back_in_silence_is_a_failure() -> None:
    line = doctor.provider_line("CUDAExecutionProvider", ["CPUExecutionProvider"], 6.0)
    assert line.failed
    assert "CUDAExecutionProvider was asked for, CPUExecutionProvider was bound" in line.message


def test_provider_that_computes_wrong_is_a_failure() -> None:
    assert doctor.provider_line("CPUExecutionProvider", ["CPUExecutionProvider"], 5.0).failed


def test_tiny_graph_runs_on_the_provider_that_was_asked_for() -> None:
    pytest.importorskip("onnxruntime")
    assert doctor.run_tiny_graph("CPUExecutionProvider") == (["CPUExecutionProvider"], 6.0)


@pytest.mark.parametrize("name", ["float32", "float16"])
def test_product_is_held_to_float64(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    dtype = getattr(torch, name)
    assert doctor.product_line(dtype, torch.device("cpu")).ok
    right = torch.Tensor.__matmul__

    def off_by_one_percent(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return right(a, b) * 1.01

    monkeypatch.setattr(torch.Tensor, "__matmul__", off_by_one_percent)
    assert doctor.product_line(dtype, torch.device("cpu")).failed


def test_whatever_a_broken_library_raises_becomes_a_line_with_its_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def torch_lines() -> Iterator[Line]:
        yield Line("torch", True, "2.4")
        raise OSError("libcudart.so.12: cannot open shared object file")

    monkeypatch.setattr(doctor, "torch_lines", torch_lines)
    lines = [line for line in doctor.doctor_lines() if line.name == "torch"]
    assert [line.ok for line in lines] == [True, False]
    assert "libcudart.so.12" in lines[1].message


def test_gpu_that_torch_does_not_reach_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(doctor, "nvidia_device", lambda: True)
    line = named(doctor.torch_lines(), "torch device")
    assert (line.ok, line.failed) == (False, False)


@pytest.mark.parametrize(("wheel", "ok"), [(True, False), (False, True)], ids=["has a wheel", "has none"])
def test_equations_are_a_warning_only_where_pybullet_could_be_installed(
    wheel: bool, ok: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    registration = ModuleType("sim.registration")
    registration.__dict__["physics_available"] = lambda: {
        "equations": "ok",
        "pybullet": "pip install 'edge-sac[sim]'",
    }
    monkeypatch.setitem(sys.modules, "sim.registration", registration)
    monkeypatch.setattr(doctor, "pybullet_wheel", lambda: wheel)
    (line,) = doctor.physics_lines()
    assert (line.ok, line.failed) == (ok, False)


def test_memory_and_disk_are_enough_at_their_bound_and_not_below() -> None:
    runs = Path("runs")
    assert doctor.memory_line(Memory(doctor.MEMORY_NEEDED, "MemAvailable")).ok
    assert doctor.memory_line(Memory(doctor.MEMORY_NEEDED - 1, "MemAvailable")).failed
    assert doctor.disk_line(runs, doctor.DISK_NEEDED).ok
    assert doctor.disk_line(runs, doctor.DISK_NEEDED - 1).failed


def test_folder_that_cannot_be_written_is_a_failure(tmp_path: Path) -> None:
    assert doctor.writable_line(tmp_path).ok
    assert doctor.writable_line(tmp_path / "runs").ok
    blocked = tmp_path / "runs"
    blocked.write_text("a file where the folder should be", encoding="utf-8")
    line = doctor.writable_line(blocked)
    assert line.failed
    assert "chown" in line.remedy


def test_memory_line_says_who_limits_it() -> None:
    assert doctor.memory_line(Memory(2**31, "memory.max of /x")).message == "2048 MiB can be had (memory.max of /x)"
