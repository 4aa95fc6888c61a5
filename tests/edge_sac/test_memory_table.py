"""The page on memory says what the cells say."""

import json
from pathlib import Path

import pytest

from edge_sac.commands.memory_table import write_memory


def cell(variant: str, returns: tuple[float, float], held: float | None, env: str = "") -> dict[str, object]:
    """Return a cell whose best and last policies had these returns."""
    best, last = ({"return_mean": one, "success_fraction": held, "returns": [one]} for one in returns)
    return {
        "variant": variant,
        "config": {
            "env": env,
            "steps": 5_000,
            "updates_per_step": 1.0,
            "eval_every": 2_500,
            "replay_capacity": 1_000,
            "agent": {"hidden": [64, 32], "batch": 16, "actor_lr": 1e-3, "critic_lr": 2e-3, "alpha_lr": 3e-3},
        },
        "steps": 5_000,
        "best": best,
        "last": last,
        "cpu_s": 1200.0,
        "curve": {"step": [2_512, 5_031], "return_mean": [1.0, 2.0]},
        "state_bytes": 123_456,
        "replay_bytes": 34_200,
        "machine": "test, 2 cores",
        "commit": "abc1234",
    }


def written(folder: Path, cells: dict[str, dict[str, object]], more: tuple[str, ...] = ()) -> str:
    kept = folder / "memory"
    for name, content in cells.items():
        path = kept / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content))
    kept.mkdir(exist_ok=True)
    write_memory(kept, [*cells, *more])
    assert (folder / "memory.png").read_bytes().startswith(b"\x89PNG")
    return (folder / "memory.md").read_text()


@pytest.fixture
def page(tmp_path: Path) -> str:
    suite = "dmc/cartpole-swingup"
    cells = {f"furuta/fp32-{s}": cell("fp32", (100.0 * s, 100), 1.0) for s in (1, 2, 3)}
    cells["furuta/fp16-0"] = cell("fp16", (400.0, 50.0), 0.9)
    cells |= {f"furuta/u8-{s}": cell("u8", (190.0, 101.5), 0.5) for s in (0, 1)}
    cells["dmc-cartpole-swingup/fp16-0"] = cell("fp16", (800.0, 790.0), None, suite)
    return written(tmp_path, cells, ("furuta/leanest-0",))


def test_medians_and_quartiles_are_over_seeds_and_ratios_of_means(page: str) -> None:
    rows = [line for line in page.splitlines() if line.startswith("| ")]
    assert rows[2] == (
        "| fp32 | 3 | 200.0 [150.0, 250.0] | 100.0 [100.0, 100.0] | 100.0 % [100.0, 100.0] | 100.0 % [100.0, 100.0] "
        "| 1.000 / 1.000 | 0.500 / 2.000 | 123,456 | 34.2 | 20.0 |"
    )
    assert "| 0.950 / 1.015 | 0.475 / 2.030 |" in rows[4]


def test_an_environment_that_judges_no_success_has_no_such_column_and_no_ratio_to_what_is_missing(page: str) -> None:
    rows = page[page.index("## dmc/cartpole-swingup") :].splitlines()
    assert rows[-1] == (
        "| fp16 | 1 | 800.0 [800.0, 800.0] | 790.0 [790.0, 790.0] | - / - | 1.000 / 1.000 | 123,456 | 34.2 | 20.0 |"
    )
    assert "held" not in rows[-3]


def test_the_page_names_settings_machine_and_commit_and_leaves_out_what_is_still_to_be_made(page: str) -> None:
    assert "5000 steps, 64-32, batch 16, learning rates 0.002 (critic), 0.001 (actor), 0.003 (alpha), 1 upd" in page
    assert "Machine: test, 2 cores. Commit: abc1234." in page
    assert "| leanest |" not in page


def test_every_row_has_as_many_columns_as_its_head(page: str) -> None:
    for section in page.split("\n## ")[1:]:
        rows = [line for line in section.splitlines() if line.startswith("|")]
        assert len({row.count("|") for row in rows}) == 1


def test_without_a_cell_the_page_is_its_head(tmp_path: Path) -> None:
    assert "Machine" not in written(tmp_path, {}, ("furuta/fp16-0",))
