"""The page of results says what the cells say."""

import json
from pathlib import Path

from edge_sac.commands.results_table import write_results


def cell(variant: str, seed: int, held: float, steps: int = 5_000) -> dict[str, object]:
    judged = {"success_fraction": held, "success_rate": float(held >= 0.9), "return_mean": 400 * held}
    return {
        "variant": variant,
        "seed": seed,
        "steps": steps,
        "best": judged,
        "last": judged | {"success_fraction": held / 2},
        "best_step": 2_512,
        "wall_s": 90.0,
        "cpu_s": 60.0,
        "curve": {"step": [2_512, 5_031], "success_fraction": [held / 2, None], "return_mean": [1.0, 2.0]},
        "learner": {"critic_scale": 5e3, "skipped_critic": 1, "skipped_actor": 0, "skipped_alpha": 2},
        "alive": {"critic_moving": 0.875, "actor_moving": 0.5, "critic_skip_streak": 0, "actor_skip_streak": 3},
        "largest_critic_weight": 2.5,
        "physics": "equations",
        "machine": "test, 2 cores",
    }


def written(folder: Path, cells: dict[str, dict[str, object]], names: list[str]) -> str:
    kept = folder / "furuta"
    kept.mkdir()
    for name, content in cells.items():
        (kept / f"{name}.json").write_text(json.dumps(content))
    write_results(kept, names)
    assert (folder / "furuta.png").read_bytes().startswith(b"\x89PNG")
    return (folder / "furuta.md").read_text()


def test_a_seed_counts_as_learned_from_ninety_percent_of_the_judged_time(tmp_path):
    names = [f"fp16-seed{seed}" for seed in range(3)]
    page = written(
        tmp_path,
        {name: cell("fp16", s, held) for s, (name, held) in enumerate(zip(names, (0.9, 0.899, 1.0), strict=True))},
        names,
    )
    assert "## fp16: 2 of 3 seeds learned" in page
    assert (
        "| 0 | 5000 | 90.0 % | 45.0 % | 360.0 | 2512 | 1.5 | 1.0 | 1 / 0 / 2 | 0 / 3 | 5000 | 88 % / 50 % | 2.50 |"
        in page
    )


def test_every_row_has_as_many_columns_as_the_head(tmp_path):
    page = written(tmp_path, {"fp32-seed0": cell("fp32", 0, 1.0)}, ["fp32-seed0"])
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert len(rows) == 3
    assert len({row.count("|") for row in rows}) == 1


def test_cells_that_are_still_to_be_made_are_left_out(tmp_path):
    page = written(tmp_path, {"fp16-seed0": cell("fp16", 0, 1.0)}, ["fp16-seed0", "fp32-seed0"])
    assert "fp32:" not in page


def test_runs_of_different_length_share_one_figure(tmp_path):
    cells = {"fp16-seed0": cell("fp16", 0, 1.0), "fp16-long-seed0": cell("fp16-long", 0, 1.0, steps=10_000)}
    assert "## fp16-long: 1 of 1" in written(tmp_path, cells, list(cells))
