from __future__ import annotations

import errno
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="pictures: pip install 'edge-sac[train]'")

from matplotlib.figure import Figure

from edge_sac.metrics import NAMES
from edge_sac.plots import report_figure, results_figure, results_panels, save_figure


def metrics_of(steps: list[int], **columns: Any) -> dict[str, Any]:
    filled = {name: np.full(len(steps), np.nan) for name in NAMES}
    filled |= {name: np.asarray(values, dtype=float) for name, values in columns.items()}
    return {"step": np.array(steps), "kind": np.full(len(steps), "train"), **filled}


def lines_of(figure: Figure) -> dict[str, tuple[list[float], list[float]]]:
    return {
        str(line.get_label()): (list(line.get_xdata()), list(line.get_ydata()))
        for axis in figure.axes
        for line in axis.get_lines()
    }


def test_the_report_draws_each_column_at_its_steps_without_its_gaps() -> None:
    figure = report_figure(
        metrics_of([1, 2, 3], return_mean=[np.nan, 5, 7], alpha=[0.1, np.nan, 0.3], utd_ratio=[1, 1, np.inf])
    )
    lines = lines_of(figure)
    assert lines["evaluation"] == ([2, 3], [5, 7])
    assert lines["alpha"] == ([1, 3], [0.1, 0.3])
    assert lines["achieved update-to-data ratio"] == ([1, 2], [1, 1])


def test_every_axis_of_the_report_has_a_unit() -> None:
    figure = report_figure(metrics_of([1, 2], **{name: [1, 2] for name in NAMES}))
    assert len(figure.axes) == 8
    for axis in figure.axes:
        assert "[" in axis.get_ylabel() or "updates" in axis.get_ylabel()
    assert [axis.get_xlabel() for axis in figure.axes[2:4]] == ["environment steps"] * 2


@pytest.mark.parametrize(
    "metrics",
    [
        pytest.param(metrics_of([]), id="no record"),
        pytest.param(metrics_of([5]), id="one record of NaN"),
        pytest.param(metrics_of([5], **{name: [1.0] for name in NAMES}), id="one point"),
        pytest.param(metrics_of([0], **{name: [0.0] for name in NAMES}), id="one point at zero"),
        pytest.param({"step": np.array([1, 2]), "alpha": np.array([0.1, 0.2])}, id="columns missing"),
        pytest.param(metrics_of([1, 2], alpha=[0, -1], critic_scale=[0, 0]), id="nothing for a log axis"),
    ],
)
def test_the_report_is_drawn_whatever_is_missing(tmp_path: Path, metrics: dict[str, Any]) -> None:
    save_figure(report_figure(metrics, "a title"), tmp_path / "report.png")
    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")


def test_results_show_median_and_quartiles_with_the_number_of_seeds() -> None:
    steps = [10, 20]
    values = [[1, 10], [2, 20], [3, 30], [4, np.nan], [100, np.nan]]
    figure = results_figure({"fp16": (steps, values), "fp32": ([10], [[7]])}, "return [1]")
    assert lines_of(figure) == {"fp16 (n = 5)": ([10, 20], [3, 20]), "fp32 (n = 1)": ([10], [7])}
    band = figure.axes[0].collections[0].get_paths()[0].vertices
    assert {tuple(point) for point in band} >= {(10, 2), (10, 4), (20, 15), (20, 25)}


def test_results_leave_out_steps_and_presets_without_a_seed(tmp_path: Path) -> None:
    figure = results_figure({"gone": ([1, 2], [[np.nan, np.nan]]), "half": ([1, 2], [[4, np.nan], [np.nan, np.inf]])})
    assert lines_of(figure) == {"half (n = 1)": ([1], [4])}
    save_figure(results_figure({}), tmp_path / "empty.png")


def test_panels_stand_below_each_other_under_their_names(tmp_path: Path) -> None:
    figure = results_panels({"one": {"fp16": ([1, 2], [[3, 4]])}, "two": {"fp32": ([1], [[5]])}})
    assert [part.get_suptitle() for part in figure.subfigs] == ["one", "two"]
    save_figure(figure, tmp_path / "panels.png")
    assert figure.subfigs[0].bbox.y0 >= figure.subfigs[1].bbox.y1
    assert [part.axes[0].lines[0].get_label() for part in figure.subfigs] == ["fp16 (n = 1)", "fp32 (n = 1)"]
    assert results_panels({}).axes == []


def test_results_of_the_wrong_shape_are_refused_by_preset() -> None:
    with pytest.raises(ValueError, match=r"'fp16' has steps \(3,\), values \(1, 2\)"):
        results_figure({"fp16": ([1, 2, 3], [[1, 2]])})


def test_a_picture_that_cannot_be_written_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.png"
    save_figure(results_figure({}), path)
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_figure(results_figure({}, title="another"), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_no_pyplot_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    save_figure(report_figure(metrics_of([1], alpha=[0.1])), tmp_path / "report.png")
