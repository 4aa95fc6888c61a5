"""A committed table can be remade: cells that are there are kept, the others are trained, a failed one is named."""

import json

import pytest
from rich.console import Console

from edge_sac.commands import reproduce as command
from edge_sac.commands.grids import ENVIRONMENTS, GRIDS, MEMORY, Cell, Grid, furuta_grid, memory_grid
from edge_sac.config import AgentConfig, Config
from edge_sac.errors import Refused


def small(name: str, variant: str, **changes) -> Cell:
    agent = AgentConfig(hidden=(8, 8), batch=8)
    settings = {"physics": "equations", "random_steps": 100, "replay_capacity": 10_000, "eval_episodes": 1}
    return Cell(name, variant, Config(steps=600, eval_every=400, agent=agent, **(settings | changes)))


def use(monkeypatch, what: str, *cells: Cell) -> None:
    monkeypatch.setitem(GRIDS, what, Grid(lambda *_: list(cells), 1))


@pytest.fixture
def console() -> Console:
    return Console(record=True, width=200)


def test_missing_cells_are_trained_and_kept_ones_are_not(tmp_path, monkeypatch, console):
    monkeypatch.chdir(tmp_path)
    cells = tmp_path / "results" / "furuta"
    use(monkeypatch, "furuta", small("fp16-seed0", "fp16"), small("fp32-seed0", "fp32", precision="fp32"))
    assert command.reproduce("furuta", 1, None, 2, cells, console) == 0
    made = {path.stem: json.loads(path.read_text()) for path in cells.glob("*.json")}
    assert set(made) == {"fp16-seed0", "fp32-seed0"}
    assert made["fp16-seed0"]["steps"] >= 600
    assert made["fp16-seed0"]["learner"]["updates"] > 400
    assert 0 <= made["fp16-seed0"]["best"]["success_fraction"] <= 1
    assert made["fp32-seed0"]["learner"]["critic_scale"] == 1
    assert "## fp16: 0 of 1 seeds learned" in cells.with_suffix(".md").read_text()
    before = (cells / "fp16-seed0.json").stat().st_mtime_ns
    monkeypatch.setattr(command, "_start", lambda *_: pytest.fail("a kept cell was trained again"))
    assert command.reproduce("furuta", 1, None, 2, cells, console) == 0
    assert (cells / "fp16-seed0.json").stat().st_mtime_ns == before


def test_failed_cell_is_named_with_its_log_and_fails_the_command(tmp_path, monkeypatch, console):
    monkeypatch.chdir(tmp_path)
    use(monkeypatch, "furuta", small("fp16-seed0", "fp16", robot="nobody"))
    assert command.reproduce("furuta", 1, None, 1, tmp_path / "furuta", console) == 4
    assert "fp16-seed0 failed with exit code 2" in console.export_text()
    assert "nobody" in (command.WORK / "furuta" / "fp16-seed0.log").read_text()


def test_each_cell_of_the_memory_grid_is_a_file_of_its_environments_folder(tmp_path, monkeypatch, console):
    monkeypatch.chdir(tmp_path)
    cells = tmp_path / "results" / "memory"
    use(monkeypatch, "memory", small("furuta/fp16-0", "fp16"))
    assert command.reproduce("memory", None, None, 1, cells, console) == 0
    made = json.loads((cells / "furuta" / "fp16-0.json").read_text())
    assert len(made["best"]["returns"]) == 10
    assert sum(made["last"]["returns"]) / 10 == pytest.approx(made["last"]["return_mean"])
    # What 10,000 transitions of furuta's 6 observations and an action take at least in fp16.
    assert made["replay_bytes"] > 10_000 * 2 * 7
    page = cells.with_suffix(".md").read_text()
    assert "## furuta" in page
    assert "swingup" not in page
    said = console.export_text()
    assert "1 runs, 1 to make: about 0.0 core-hours, 1 at a time" in said
    assert "furuta/fp16-0 done, 1 of 1, about" in said


def test_cost_is_told_by_the_finished_cells_of_the_same_environment():
    cells = [small("a", "fp16"), small("b", "fp16", env="Pendulum-v1")]
    done = [{"config": {"env": ""}, "cpu_s": cpu_s, "steps": 1_000} for cpu_s in (1.0, 3.0, 100.0)]
    costs = command._cpu_seconds(cells, done)
    assert costs == {"a": pytest.approx(600 * 0.003), "b": pytest.approx(600 * command.STEP_S)}


def test_furutas_grid_holds_every_variant_on_the_same_seeds_and_one_long_run():
    names = [cell.name for cell in furuta_grid(2, None)]
    assert names[:4] == ["fp16-seed0", "fp32-seed0", "fp16-seed1", "fp32-seed1"]
    assert names[4] == "fp16-long-seed0"
    assert len(names) == len(set(names)) == 9
    assert furuta_grid(1, None)[2].config.steps == 100_000
    assert {cell.config.steps for cell in furuta_grid(1, 50)} == {50}


def test_memorys_grid_holds_every_option_in_every_environment_on_the_same_seeds():
    cells = memory_grid(3, None)
    assert len({cell.name for cell in cells}) == len(cells) == 3 * len(ENVIRONMENTS) * len(MEMORY)
    assert [cell.name for cell in cells[:2]] == ["furuta/fp32-0", "furuta/fp16-0"]
    assert "dmc-cartpole-swingup/leanest-2" in {cell.name for cell in cells}
    furuta = {cell.variant: cell.config for cell in cells if cell.name.startswith("furuta/") and cell.config.seed == 1}
    assert furuta["fp16"] == Config(seed=1)
    leanest = furuta["leanest"]
    assert (leanest.rounding, leanest.moments, leanest.gradients) == ("stochastic", "8bit", "in-place")
    assert {cell.config.steps for cell in memory_grid(1, 50)} == {50}


def test_unknown_table_is_refused_by_name(tmp_path, console):
    with pytest.raises(Refused, match=r"no table 'walker'.*furuta, memory"):
        command.reproduce("walker", 1, None, 1, tmp_path, console)
