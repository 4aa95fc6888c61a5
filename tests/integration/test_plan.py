"""A run is planned before it is begun, and one that cannot fit is refused before anything is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from edge_sac import memory_fit
from edge_sac.commands import plan
from edge_sac.commands.process_cost import Cost, ProcessCost
from edge_sac.memory_available import Memory


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take what a process costs as given: to measure it takes seconds."""
    monkeypatch.setattr(plan, "measure", lambda _config: ProcessCost((Cost("interpreter", 2**20),)))


def test_plan_measures_prints_and_writes(call: Any, workplace: Path, snapshot: Any) -> None:
    before = snapshot(workplace)
    answer = call("plan", "tiny.toml", "--device", "cpu", "--json", "plan.json")
    assert answer.code == 0, answer
    record = json.loads((workplace / "plan.json").read_text())
    assert "import torch" in record["measured"]
    assert record["refusal"] == ""
    assert snapshot(workplace).keys() - before.keys() == {"plan.json"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["--budget", "4G"], ["'4G'", "GiB"], id="unknown unit"),
        pytest.param(["--budget", "-1"], ["-1"], id="negative budget"),
        pytest.param(["none.toml"], ["none.toml"], id="configuration that is not there"),
        pytest.param(["."], ["not a run"], id="folder without a run"),
        pytest.param(["--robot", "furuta", "--env", "Pendulum-v1"], ["one of them"], id="robot and environment"),
        pytest.param(["--precision", "fp8"], ["'fp8'"], id="unknown precision"),
        pytest.param(["--storage", "u4"], ["'u4'"], id="unknown storage"),
        pytest.param(["tiny.toml", "--device", "cpu", "--budget", "1MB"], ["--budget", "agent.hidden"], id="too small"),
    ],
)
@pytest.mark.usefixtures("measured")
def test_what_cannot_be_planned_or_does_not_fit_is_refused_in_one_line(
    call: Any, arguments: list[str], words: list[str]
) -> None:
    answer = call("plan", *arguments)
    assert answer.code == 2, answer
    (line,) = answer.err.splitlines()
    for word in words:
        assert word in line


@pytest.mark.usefixtures("measured")
def test_a_finished_run_is_planned_from_its_folder(call: Any, finished: Path) -> None:
    answer = call("plan", finished)
    assert answer.code == 0, answer
    # The replay's space is taken already, and so is that of three checkpoints of four.
    (line,) = (line for line in answer.out.splitlines() if line.startswith("Disk: "))
    assert line.startswith("Disk: 0.")


def test_train_and_resume_refuse_what_does_not_fit_and_leave_no_trace(
    call: Any, finished: Path, workplace: Path, snapshot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_fit, "available_memory", lambda: Memory(100_000, "memory.max of /small"))
    before = snapshot(workplace)
    for arguments in (["train", "--config", "tiny.toml"], ["resume", finished, "--steps", "10"]):
        answer = call(*arguments)
        assert answer.code == 2, answer
        assert "0.1 MiB can be had (memory.max of /small)" in answer.err
        assert snapshot(workplace) == before


def test_table_is_printed_alone(call: Any) -> None:
    answer = call("plan", "--table")
    assert answer.code == 0
    assert answer.out.startswith("| | theta | gradient |")
