"""A committed table can be remade: cells that are there are kept, the others are trained, a failed one is named."""

import json

import pytest
from rich.console import Console

from edge_sac.commands import reproduce as command
from edge_sac.config import AgentConfig, Config
from edge_sac.errors import Refused


def small(variant: str, **changes) -> command.Cell:
    agent = AgentConfig(hidden=(8, 8), batch=8)
    settings = {"physics": "equations", "random_steps": 100, "replay_capacity": 10_000, "eval_episodes": 1}
    return command.Cell(variant, Config(steps=600, eval_every=400, agent=agent, **(settings | changes)))


@pytest.fixture
def console() -> Console:
    return Console(record=True, width=200)


def test_missing_cells_are_trained_and_kept_ones_are_not(tmp_path, monkeypatch, console):
    monkeypatch.chdir(tmp_path)
    cells = tmp_path / "results" / "furuta"
    monkeypatch.setattr(command, "grid", lambda *_: [small("fp16"), small("fp32", precision="fp32")])
    assert command.reproduce("furuta", 1, None, 2, cells, console) == 0
    made = {path.stem: json.loads(path.read_text()) for path in cells.glob("*.json")}
    assert set(made) == {"fp16-seed0", "fp32-seed0"}
    assert made["fp16-seed0"]["steps"] >= 600
    assert made["fp16-seed0"]["learner"]["updates"] > 400
    assert 0 <= made["fp16-seed0"]["best"]["success_fraction"] <= 1
    assert made["fp32-seed0"]["learner"]["critic_scale"] == 1
    assert "## fp16: 0 of 1 seeds learned" in cells.with_suffix(".md").read_text()
    before = (cells / "fp16-seed0.json").stat().st_mtime_ns
    monkeypatch.setattr(command, "_start", lambda _: pytest.fail("a kept cell was trained again"))
    assert command.reproduce("furuta", 1, None, 2, cells, console) == 0
    assert (cells / "fp16-seed0.json").stat().st_mtime_ns == before


def test_failed_cell_is_named_with_its_log_and_fails_the_command(tmp_path, monkeypatch, console):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "grid", lambda *_: [small("fp16", robot="nobody")])
    assert command.reproduce("furuta", 1, None, 1, tmp_path / "furuta", console) == 4
    assert "fp16-seed0 failed with exit code 2" in console.export_text()
    assert "nobody" in (command.WORK / "fp16-seed0.log").read_text()


def test_grid_holds_every_variant_on_the_same_seeds_and_one_long_run():
    names = [cell.name for cell in command.grid(2, None)]
    assert names[:4] == ["fp16-seed0", "fp32-seed0", "fp16-seed1", "fp32-seed1"]
    assert names[4] == "fp16-long-seed0"
    assert len(names) == len(set(names)) == 9
    assert command.grid(1, None)[2].config.steps == 100_000
    assert {cell.config.steps for cell in command.grid(1, 50)} == {50}


def test_unknown_table_is_refused_by_name(tmp_path, console):
    with pytest.raises(Refused, match=r"no table 'walker'.*furuta"):
        command.reproduce("walker", 1, None, 1, tmp_path, console)
