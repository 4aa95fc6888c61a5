"""A run that does not fit is refused with a replay that does, and with what saves how much, the most harmless first."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
import torch

from edge_sac import memory_fit
from edge_sac.config import AgentConfig, Config
from edge_sac.errors import Refused
from edge_sac.memory_available import Memory
from edge_sac.memory_fit import LEANER, Room, check_fits, fits, largest_replay, refusal, savings
from edge_sac.plan import Sizes, plan_of

SIZES = Sizes(17, 6, torch.float32)
CONFIG = Config(device="cpu", agent=AgentConfig(hidden=(256, 256)))


def changed(**changes: Any) -> Config:
    return msgspec.structs.replace(CONFIG, **changes)


def room(size: int, besides: int = 0, on_gpu: bool | None = None) -> Room:
    return Room(size, "a test", besides, on_gpu=on_gpu)


def test_a_run_fits_a_room_of_exactly_its_peak_and_no_smaller_one() -> None:
    peak = plan_of(CONFIG, SIZES).peak()
    assert refusal(CONFIG, SIZES, [room(peak + 7, besides=7)]) == ""
    assert refusal(CONFIG, SIZES, [room(peak + 6, besides=7)]) != ""


def test_the_report_at_the_end_counts_where_it_is_larger_than_the_replay_that_was_closed() -> None:
    plan = plan_of(CONFIG, SIZES)
    replay = plan.of("replay")
    for report, needed in ((replay - 1, plan.peak()), (replay + 9, plan.peak() + 9)):
        assert Room(0, "a test", report=report).needed(plan) == needed


@pytest.mark.parametrize("sampling", ["uniform", "prioritized"])
@pytest.mark.parametrize("size", [30 * 2**20, 45 * 2**20, 200 * 2**20])
def test_the_largest_replay_fits_and_one_transition_more_does_not(size: int, sampling: str) -> None:
    config = changed(sampling=sampling)
    most = largest_replay(config, SIZES, [room(size)])
    assert most > 0
    assert fits(msgspec.structs.replace(config, replay_capacity=most), SIZES, [room(size)])
    assert not fits(msgspec.structs.replace(config, replay_capacity=most + 1), SIZES, [room(size)])


def test_refusal_names_what_is_needed_what_there_is_and_what_would_fit() -> None:
    text = refusal(CONFIG, SIZES, [room(40 * 2**20)])
    most = largest_replay(CONFIG, SIZES, [room(40 * 2**20)])
    assert text.startswith("this run needs ")
    assert "and 40.0 MiB can be had (a test)" in text
    assert f"set replay_capacity = {most} or less (1000000 now, 56 bytes each)" in text
    assert 'storage = "u8" (' in text


def test_where_no_replay_fits_smaller_networks_are_asked_for() -> None:
    text = refusal(CONFIG, SIZES, [room(2**20)])
    assert "no replay is small enough" in text
    assert "replay_capacity" not in text


def test_savings_come_in_order_and_are_what_a_plan_with_the_setting_takes_less() -> None:
    config = changed(precision="fp32", agent=AgentConfig(hidden=(1024, 1024)))
    found = savings(config, SIZES)
    now = plan_of(config, SIZES).peak()
    order = [f'{key} = "{value}"' for change in LEANER for key, value in change.items()]
    assert [line for line, _ in found] == [line for line in order if line in dict(found)]
    # fp32 has no w to keep in a byte, and no rounding to do.
    assert [line for line, _ in found] == ['precision = "fp16"', 'gradients = "in-place"', 'storage = "u8"']
    assert dict(found)['storage = "u8"'] == now - plan_of(msgspec.structs.replace(config, storage="u8"), SIZES).peak()


def test_what_would_save_nothing_is_not_named() -> None:
    config = changed(storage="u8", gradients="in-place", moments="8bit", rounding="stochastic")
    assert savings(config, SIZES) == []
    assert refusal(config, SIZES, [room(30 * 2**20)]).endswith("bytes each); or close other programs")


def test_a_copy_that_a_gpu_has_no_room_for_goes_to_pinned_memory() -> None:
    config = changed(device="cuda")
    plan = plan_of(config, SIZES)
    copy = next(one.bytes for one in plan.buffers if one.role == "working copy")
    beside, on_gpu = plan.peak(on_gpu=False), plan.peak(on_gpu=True)
    assert fits(config, SIZES, [room(beside, on_gpu=False), room(on_gpu, on_gpu=True)])
    assert fits(config, SIZES, [room(beside + copy, on_gpu=False), room(on_gpu - copy, on_gpu=True)])
    assert not fits(config, SIZES, [room(beside, on_gpu=False), room(on_gpu - 1, on_gpu=True)])
    assert not fits(config, SIZES, [room(beside + copy, on_gpu=False), room(on_gpu - copy - 1, on_gpu=True)])


def test_check_refuses_what_this_process_cannot_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_fit, "available_memory", lambda: Memory(30 * 2**20, "memory.max of /x"))
    with pytest.raises(Refused, match=r"30\.0 MiB can be had \(memory\.max of /x\): set replay_capacity = "):
        check_fits(CONFIG, SIZES)
    monkeypatch.setattr(memory_fit, "available_memory", lambda: Memory(2**30, "MemAvailable"))
    check_fits(CONFIG, SIZES)


def test_check_that_passes_takes_less_than_50_ms() -> None:
    check_fits(CONFIG, SIZES)
    # The shortest of some: other work on the machine can only add to it.
    taken = []
    for _ in range(5):
        start = time.perf_counter()
        check_fits(CONFIG, SIZES)
        taken.append(time.perf_counter() - start)
    assert min(taken) < 0.05
