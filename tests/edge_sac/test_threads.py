"""A further thread is taken only where it was seen to be worth its core."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from edge_sac import threads
from edge_sac.config import AgentConfig
from edge_sac.free_cores import Cores
from edge_sac.half_matmul import MatmulPath
from edge_sac.precision import precision
from edge_sac.threads import candidates, fastest, probe_threads, time_each


@pytest.mark.parametrize(
    ("free", "counts"), [(1, [1]), (2, [1, 2]), (3, [1, 2, 3]), (8, [1, 2, 4, 8]), (12, [1, 2, 4, 8, 12])]
)
def test_powers_of_two_and_all_free_cores_are_tried(free: int, counts: list[int]) -> None:
    assert candidates(free) == counts


@pytest.mark.parametrize(
    ("milliseconds", "count"),
    [
        pytest.param({1: 10.0}, 1, id="one core"),
        pytest.param({1: 10.0, 2: 5.2}, 2, id="clearly faster"),
        pytest.param({1: 10.0, 2: 9.2}, 1, id="within the margin"),
        pytest.param({1: 11.0, 2: 10.0}, 2, id="just the margin"),
        pytest.param({1: 10.0, 2: 400.0}, 1, id="a busy neighbour"),
        pytest.param({1: 10.0, 2: 6.0, 4: 5.8}, 2, id="fewer where more gain little"),
        pytest.param({1: 10.0, 2: 9.5, 4: 8.0}, 4, id="more, though two alone gain little"),
    ],
)
def test_fewest_threads_that_are_not_clearly_slower_are_taken(milliseconds: dict[int, float], count: int) -> None:
    assert fastest(milliseconds) == count


def test_each_number_of_threads_is_timed_with_torch_set_to_it_and_torch_left_as_it_was() -> None:
    found = torch.get_num_threads()
    seen: list[int] = []
    shortest = time_each([1, 2], lambda: seen.append(torch.get_num_threads()))
    assert set(shortest) == {1, 2}
    assert all(0 < seconds < 1 for seconds in shortest.values())
    assert set(seen) == {1, 2}
    assert torch.get_num_threads() == found


def test_torch_is_left_as_it_was_when_an_update_fails() -> None:
    found = torch.get_num_threads()

    def fail() -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        time_each([found + 1], fail)
    assert torch.get_num_threads() == found


def probed(idle: float, allowed: int = 2) -> threads.Threads:
    chosen = precision("fp32")
    path = MatmulPath(chosen.dtype, torch.float32, "test")
    cores = Cores(allowed, float("inf"), idle)
    return probe_threads(3, 1, AgentConfig(hidden=(8, 8), batch=8), chosen, path, cores)


def test_neighbour_that_holds_the_other_core_leaves_one_thread_untried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "time_each", lambda *_: pytest.fail("tried"))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    chosen = probed(idle=1.0)
    assert (chosen.count, chosen.reason) == (1, "1 of 2 cores free (1.0 idle)")


def test_number_of_threads_the_user_gave_torch_is_the_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "time_each", lambda *_: pytest.fail("tried"))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert probed(idle=8.0, allowed=8).count == 1


def test_what_was_measured_is_in_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(
        threads, "time_each", lambda counts, update: (update(), dict(zip(counts, (4e-3, 3e-3), strict=True)))[1]
    )
    chosen = probed(idle=2.0)
    assert chosen.count == 2
    assert chosen.reason.endswith("an update with 1: 4.0 ms, 2: 3.0 ms")


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_beside_a_process_that_holds_a_core_the_probe_leaves_that_core_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measured, not made up: whatever else runs can only leave fewer."""
    allowed = sorted(os.sched_getaffinity(0))
    monkeypatch.setattr(torch, "get_num_threads", lambda: len(allowed))
    monkeypatch.setattr(threads, "time_each", lambda counts, _: {count: 1.0 / count for count in counts})
    chosen = precision("fp32")
    path = MatmulPath(chosen.dtype, torch.float32, "test")
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as neighbour:
        os.sched_setaffinity(neighbour.pid, {allowed[0]})
        try:
            found = probe_threads(3, 1, AgentConfig(hidden=(8,), batch=8), chosen, path)
        finally:
            neighbour.kill()
    assert 1 <= found.count <= len(allowed) - 1
