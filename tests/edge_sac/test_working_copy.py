"""The working copy lies where it fits, and of those places where it is read fastest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from edge_sac import working_copy
from edge_sac.agent import Agent
from edge_sac.config import AgentConfig, Config
from edge_sac.device_memory import DeviceColumn, PinnedColumn, _Address
from edge_sac.half_matmul import MatmulPath
from edge_sac.memory_available import Memory
from edge_sac.precision import precision
from edge_sac.replay import Replay
from edge_sac.sources import DeviceSource, HostSource
from edge_sac.working_copy import choose, place, read_seconds, source_for

CPU = torch.device("cpu")
NO = "pinned memory cannot be read there (no)"


@pytest.mark.parametrize(
    ("needed", "in_device", "in_host", "problem", "column", "words"),
    [
        pytest.param(800, 1e-5, 5e-5, "", DeviceColumn, "in 10 us from its memory, in 50 us from pinned", id="fits"),
        pytest.param(800, 1e-5, 0.95e-5, "", DeviceColumn, "800 bytes of 1000 free", id="pinned hardly faster"),
        pytest.param(800, 1e-5, 0.9e-5, "", PinnedColumn, "from pinned memory of the host: a batch", id="faster"),
        pytest.param(801, 1e-5, 5e-5, "", PinnedColumn, "801 bytes are too many for 1000 free", id="too large"),
        pytest.param(800, 1e-5, float("inf"), NO, DeviceColumn, "(no)", id="fits, pinned does not work"),
        pytest.param(801, 1e-5, float("inf"), NO, None, "too many for 1000 free, and pinned memory", id="neither"),
    ],
)
def test_place_is_the_devices_memory_unless_it_is_too_small_or_clearly_slower(
    needed: int, in_device: float, in_host: float, problem: str, column: Any, words: str
) -> None:
    chosen, reason = choose(needed, 1_000, in_device, in_host, problem)
    assert chosen is column
    assert words in reason


def test_both_memories_are_measured_on_a_part_of_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[int, ...]] = []
    monkeypatch.setattr(working_copy, "free_bytes", lambda _: 10**9)
    monkeypatch.setattr(working_copy, "pinned_problem", lambda _: "")
    monkeypatch.setattr(working_copy, "PinnedColumn", lambda *given: made.append(given[0]) or DeviceColumn(*given))
    monkeypatch.setattr(working_copy, "SAMPLE", 64_000)
    column, _ = place(10**6, CPU)
    assert made == [(1_000, 64)]
    assert column is not None


def test_reading_takes_a_time() -> None:
    assert 0 < read_seconds(DeviceColumn((1_000, 64), torch.uint8, CPU), CPU) < 1


def test_pinned_memory_that_does_not_work_is_told_and_not_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("Need to provide pin_memory allocator\nmore")

    monkeypatch.setattr(working_copy, "PinnedColumn", refuse)
    assert (
        working_copy.pinned_problem(CPU) == "pinned memory cannot be read there (Need to provide pin_memory allocator)"
    )
    monkeypatch.setattr(working_copy, "PinnedColumn", DeviceColumn)
    assert working_copy.pinned_problem(CPU) == ""


def test_address_of_pinned_memory_is_told_as_the_interface_has_it() -> None:
    values = torch.zeros(7, 3, dtype=torch.float16)
    told = _Address(values).__cuda_array_interface__
    assert told["data"] == (values.data_ptr(), False)
    assert (told["shape"], np.dtype(told["typestr"]), told["strides"]) == ((7, 3), np.dtype(np.float16), None)


@pytest.mark.parametrize(("integrated", "free"), [(False, 5), (True, 9)])
def test_gpu_in_the_hosts_memory_can_have_what_the_host_has(
    integrated: bool, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = type("Properties", (), {"is_integrated": integrated})()
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (5, 10))
    monkeypatch.setattr(working_copy, "available_memory", lambda: Memory(9, "MemAvailable"))
    assert working_copy.free_bytes(torch.device("cuda")) == free


@pytest.mark.parametrize(
    ("device", "sampling", "column", "kind", "words"),
    [
        ("cpu", "uniform", None, HostSource, ""),
        ("cuda", "prioritized", DeviceColumn, HostSource, "drawn on the host, one for each update: that is where"),
        ("cuda", "uniform", None, HostSource, "drawn on the host, one for each update: because"),
        ("cuda", "uniform", DeviceColumn, DeviceSource, "drawn on cuda: because"),
    ],
)
def test_batches_are_drawn_where_they_can_be_and_it_is_said(
    device: str, sampling: Any, column: Any, kind: Any, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = precision("fp16")
    config = Config(agent=AgentConfig(hidden=(8,), batch=8), sampling=sampling)
    agent = Agent(3, 1, config.agent, chosen, MatmulPath(chosen.dtype, torch.float32, "test"), CPU, seed=0)
    agent.device = torch.device(device)
    monkeypatch.setattr(working_copy, "static_batch", lambda *_: None if device == "cpu" else object())
    monkeypatch.setattr(working_copy, "place", lambda *_: (column, "because"))
    replay = Replay(20, 3, 1)
    sampler = replay.sampler(8, gamma=0.9, prioritized=sampling == "prioritized")
    source, line = source_for(agent, replay, sampler, np.random.default_rng(0), config)
    assert isinstance(source, kind)
    assert words in line
