"""Ratios stay within a round, medians are of clean rounds, and other processes are seen."""

from __future__ import annotations

import os
import re
import time

import pytest

from edge_sac.commands.bench.candidate import Work
from edge_sac.commands.bench.cpu_load import BusyCore, Others, pin, process_seconds, quiet_cpus
from edge_sac.commands.bench.rounds import Pace, Rounds, Turn, Window, run_rounds
from edge_sac.commands.bench.worker import Lost
from edge_sac.errors import Refused

DEADLINE_S = 20.0


class Script:
    """Stands for a worker: answers with given rates in turn, and is lost when they run out."""

    def __init__(self, rates: list[float], log: list[str], name: str) -> None:
        self.work, self.pid = Work(), os.getpid()
        self._rates, self._log, self._name = rates, log, name

    def ask(self, do: str, _: float) -> dict[str, object]:
        self._log.append(f"{self._name} {do}")
        if not self._rates:
            raise Lost("died with exit code 7")
        rate = self._rates.pop(0)
        return {"done": rate, "total": 2 * rate, "wall": 1.0, "cpu": 1.0, "p50": 1 / rate, "p99": 2 / rate} | {
            "resident": 1,
            "peak": 2,
        }


@pytest.fixture(autouse=True)
def processors():
    """Leave this process where it may run: a script's turns pin it."""
    allowed = os.sched_getaffinity(0)
    yield
    pin(os.getpid(), allowed)


def window(rate: float, others: float = 0.0) -> Window:
    return Window(rate, 1 / rate, 2 / rate, 1 / rate, 1.0, others, None, 1, 2)


def test_candidates_take_turns_in_every_round():
    log: list[str] = []
    turns = [Turn(name, Script([1.0] * 3, log, name), "update") for name in "abc"]
    run_rounds(turns, Pace(3, 0.0, patience=0.0))
    assert log == [f"{name} update" for name in "abcabcabc"]


def test_ratio_is_within_a_round_and_so_blind_to_a_machine_that_halves_its_speed():
    log: list[str] = []
    turns = [Turn("slow", Script([10, 5, 10], log, ""), "u"), Turn("fast", Script([20, 10, 20], log, ""), "u")]
    result = run_rounds(turns, Pace(3, 0.0, patience=0.0))
    assert result.ratio("fast", "slow") == 2
    assert result.ratio("fast", "nobody") is None
    # No ratio of medians: over a round of slow at 1 and one of fast at 1 that would be 1.
    mixed = Rounds(
        [{"a": window(1), "b": window(3)}, {"a": window(9), "b": window(1)}, {"a": window(4), "b": window(8)}]
    )
    assert mixed.ratio("b", "a") == 2
    assert mixed.median("b", lambda w: w.per_second) / mixed.median("a", lambda w: w.per_second) == 0.75


def test_peer_lost_is_named_and_not_asked_again_but_one_of_ours_ends_the_benchmark():
    log: list[str] = []
    ours, peer = Script([1.0] * 3, log, "ours"), Script([1.0], log, "peer")
    turns = [Turn("ours", ours, "u"), Turn("peer", peer, "u", needed=False), Turn("peer 2", peer, "v", needed=False)]
    result = run_rounds(turns, Pace(3, 0.0, patience=0.0))
    assert result.lost == dict.fromkeys(("peer", "peer 2"), "died with exit code 7")
    assert log == ["ours u", "peer u", "peer v", "ours u", "ours u"]
    assert [len(round_) for round_ in result.windows] == [2, 1, 1]
    with pytest.raises(Lost, match="ours: died with exit code 7"):
        run_rounds(turns[:1], Pace(1, 0.0, patience=0.0))


def test_energy_is_per_operation_the_untimed_ones_included():
    joules = iter([0.0, 30.0])
    turn = Turn("a", Script([5.0], [], ""), "u")
    result = run_rounds([turn], Pace(1, 0.0, joules=lambda: next(joules), patience=0.0))
    assert result.row("a")["joules"] == 3


@pytest.mark.parametrize(
    ("others", "median", "note"),
    [
        pytest.param([0, 0, 0, 0], 2.5, "medians of 4 rounds, all clean", id="quiet"),
        pytest.param([0, 0, 0, 0.9], 2.0, "the 3 clean of 4 rounds: .* up to 0.90 cores", id="one disturbed"),
        pytest.param([0, 0.5, 0.9, 0.2], 2.5, "all 4, most of them not clean, of 4 rounds", id="mostly disturbed"),
    ],
)
def test_disturbed_rounds_do_not_count_unless_most_are_and_that_is_said(others, median, note):
    result = Rounds([{"a": window(rate, share)} for rate, share in zip((1, 2, 3, 4), others, strict=True)])
    assert result.median("a", lambda w: w.per_second) == median
    assert re.search(note, result.note())


def test_busy_core_works_when_let_and_is_seen_by_those_it_does_not_belong_to():
    if len(os.sched_getaffinity(0)) < 2:
        with pytest.raises(Refused, match="one processor"):
            BusyCore()
        return
    core = BusyCore()
    try:
        strangers, ours = Others([]), Others([core.pid])
        core.go()
        deadline = time.monotonic() + DEADLINE_S
        while process_seconds(core.pid) < 0.2:
            assert time.monotonic() < deadline
        core.stop()
        seen = strangers.cores() - ours.cores()
        used = process_seconds(core.pid)
        until = time.monotonic() + 0.1
        while time.monotonic() < until:
            pass
        assert seen > 0.05  # it got 0.2 s of at most a few seconds
        assert process_seconds(core.pid) - used <= 0.02  # two ticks of the clock it is counted by
    finally:
        core.close()
    assert process_seconds(core.pid) == 0


def test_wait_for_a_quiet_machine_ends():
    cpus, waited = quiet_cpus(0.0)
    assert set(cpus) == os.sched_getaffinity(0)
    assert waited < DEADLINE_S
