"""`edge-sac plan` prints every buffer in 80 columns, writes what it prints, and refuses what does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from edge_sac.byte_size import mebibytes
from edge_sac.commands import plan as command
from edge_sac.commands.process_cost import Cost, ProcessCost
from edge_sac.commands.terminal import Terminal
from edge_sac.config import AgentConfig, Config, dump_config
from edge_sac.contract import Contract
from edge_sac.errors import ConfigError, Refused
from edge_sac.plan import Sizes, plan_of
from edge_sac.run_folder import Start, new_folder

COST = ProcessCost((Cost("interpreter", 10 * 2**20), Cost("import torch", 200 * 2**20)), report=2**20)
FURUTA = Sizes(6, 1, torch.float32)


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Take a process's cost as given, products as fp32 ones, and be in an empty folder."""
    monkeypatch.setattr(command, "measure", lambda _config: COST)
    monkeypatch.setattr(command, "probe_compute", lambda _config: torch.float32)
    monkeypatch.chdir(tmp_path)


def settings(**changes: Any) -> Config:
    """Return the run that is planned: wide enough that every option saves something."""
    agent = AgentConfig(hidden=(1024, 1024), batch=64)
    return Config(physics="equations", device="cpu", agent=agent, **changes)


@pytest.fixture
def toml(tmp_path: Path) -> Path:
    path = tmp_path / "wide.toml"
    path.write_text(dump_config(settings()))
    return path


def test_every_buffer_and_every_sum_is_printed_in_80_columns(
    toml: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # A narrower terminal wraps lines itself: no number is cut off.
    monkeypatch.setenv("COLUMNS", "40")
    assert command.plan(toml, {}, None, None, Terminal()) == 0
    text = capsys.readouterr().out
    plan = plan_of(settings(), FURUTA)
    tables = text[: text.index("can be had")].splitlines()
    assert max(map(len, tables)) <= 80
    for one in plan.buffers:
        (line,) = (
            line for line in tables if line.startswith(one.owner) and f" {one.role}" in line and _ends(line, one.bytes)
        )
        assert f"{one.elements:,}" in line
    assert f"{(COST.bytes + plan.peak()) / 2**20:,.1f}" in text
    assert "import torch" in text
    assert f"{mebibytes(plan.disk)} for replay and checkpoints" in text


def _ends(line: str, size: int) -> bool:
    return line.split()[-1] == f"{size:,}"


def test_file_holds_what_is_printed(toml: Path, tmp_path: Path) -> None:
    output = tmp_path / "plan.json"
    command.plan(toml, {"storage": "u8"}, None, output, Terminal())
    record = json.loads(output.read_text())
    plan = plan_of(settings(storage="u8"), FURUTA)
    assert record["config"]["storage"] == "u8"
    assert sum(one["bytes"] for one in record["buffers"] if one["kind"] == "state") == record["totals"]["state"]
    assert record["totals"]["process_peak"] == COST.bytes + plan.peak()
    assert record["totals"]["disk"] == plan.disk
    assert record["measured"] == {"interpreter": 10 * 2**20, "import torch": 200 * 2**20, "report": 2**20}
    assert record["refusal"] == ""
    (room,) = record["rooms"]
    assert room["needed"] == record["totals"]["process_peak"] <= room["bytes"]


def test_over_budget_is_refused_once_all_is_written(
    toml: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "plan.json"
    budget = COST.bytes + plan_of(settings(), FURUTA).peak() - 2**20
    with pytest.raises(Refused, match=r"\(--budget\): set replay_capacity = \d+ or less") as refused:
        command.plan(toml, {}, budget, output, Terminal())
    record = json.loads(output.read_text())
    assert record["refusal"] == str(refused.value)
    assert "Buffers, by arithmetic" in capsys.readouterr().out
    # What it says to do is what it would not refuse.
    smaller = msgspec.structs.replace(settings(), replay_capacity=record["largest_replay"])
    toml.write_text(dump_config(smaller))
    assert command.plan(toml, {}, budget, None, Terminal()) == 0


def test_full_disk_is_refused(toml: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = plan_of(settings(), FURUTA).disk
    for free, fits in ((needed, True), (needed - 1, False)):
        monkeypatch.setattr(command, "free_disk", lambda _folder, free=free: free)
        if fits:
            assert command.plan(toml, {}, None, None, Terminal()) == 0
        else:
            with pytest.raises(Refused, match="on disk"):
                command.plan(toml, {}, None, None, Terminal())


def test_run_folder_is_planned_as_it_was_begun_and_its_files_are_not_needed_again(tmp_path: Path) -> None:
    config = settings()
    contract = command.environment(config).contract
    run = tmp_path / "run"
    with new_folder(run, config, Start(contract, "float16", "a test", "")):
        (run / "replay").mkdir()
        (run / "replay" / "transitions.map").write_bytes(b"x" * 2**20)
    asked = command.question(run, {})
    assert asked.sizes == Sizes(6, 1, torch.float16)
    assert asked.config == config
    assert 2**20 <= asked.written < 2**20 + 2**16
    assert command.question(run, {"storage": "u8"}).config.storage == "u8"


def test_gpu_that_shares_the_memory_is_one_room_and_one_of_its_own_a_second() -> None:
    (shared,) = command.rooms_for(COST, 2**30, gpu=True)
    assert (shared.bytes, shared.besides, shared.report, shared.on_gpu) == (2**30, COST.bytes, 2**20, None)
    own = ProcessCost(COST.stages, 2**20, gpu_left=2**32)
    host, gpu = command.rooms_for(own, 2**30, gpu=True)
    assert (host.on_gpu, gpu.on_gpu, gpu.bytes, gpu.besides, gpu.report) == (False, True, 2**32, 0, 0)


def test_what_this_process_itself_holds_counts_as_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    from edge_sac.memory_available import Memory

    monkeypatch.setattr(command, "available_memory", lambda: Memory(100, "MemAvailable"))
    monkeypatch.setattr(command, "resident_memory", lambda field: {"RssAnon": 20}[field])
    (room,) = command.rooms_for(COST, None, gpu=False)
    assert (room.bytes, room.source) == (120, "MemAvailable")


def test_unknown_settings_are_refused(toml: Path) -> None:
    with pytest.raises(ConfigError, match="fp8"):
        command.plan(toml, {"precision": "fp8"}, None, None, Terminal())
    with pytest.raises(ConfigError, match="cannot read"):
        command.question(Path("none.toml"), {})


def test_sizes_are_those_of_the_contract() -> None:
    contract: Contract = command.environment(settings(env="Pendulum-v1")).contract
    assert command.sizes_of(contract, torch.float32) == Sizes(3, 1, torch.float32)
