"""Pictures of a run and of a table of runs, as Figures from arrays; the caller saves them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import ArrayLike, NDArray

from edge_sac.atomic import write_file

Metrics = Mapping[str, NDArray[Any]]
Curves = Mapping[str, tuple[ArrayLike, ArrayLike]]
"""By name: steps [N], values [seeds, N]."""


def report_figure(metrics: Metrics, title: str = "") -> Figure:
    """Return one run's picture: return and success, alpha and entropy, loss scales and skips, speed.

    metrics: as `edge_sac.metrics.read_metrics` returns it; a column that is missing or NaN is left out.
    """
    figure = _figure(title)
    axes = figure.subplots(2, 2, sharex=True)
    _draw_returns(axes[0, 0], metrics)
    _draw_entropy(axes[0, 1], metrics)
    _draw_scales(axes[1, 0], metrics)
    _draw_speed(axes[1, 1], metrics)
    for axis in axes[1]:
        _label_steps(axis)
    return figure


def results_figure(curves: Curves, quantity: str = "evaluation return [1]", title: str = "") -> Figure:
    """Return the median of each preset over its seeds, quartiles shaded, the number of seeds in the legend.

    A seed that ended early is NaN from there on; points without any seed are left out. Raises ValueError when
    a preset's values are not [seeds, N] for its N steps.
    """
    figure = _figure(title)
    _draw_results(figure.subplots(), curves, quantity)
    return figure


def results_panels(panels: Mapping[str, Curves], quantity: str = "evaluation return [1]") -> Figure:
    """Return the same for several groups of curves, one below the other, each under its name."""
    figure = _figure("", height=max(5.5 * len(panels), 4.0))
    places = figure.add_gridspec(max(len(panels), 1), 1)
    for row, (name, curves) in enumerate(panels.items()):
        part = figure.add_subfigure(places[row])
        part.suptitle(name)
        _draw_results(part.subplots(), curves, quantity)
    return figure


def _draw_results(axis: Axes, curves: Curves, quantity: str) -> None:
    for name, (given_steps, given_values) in curves.items():
        steps, values = np.asarray(given_steps, dtype=float), np.asarray(given_values, dtype=float)
        if steps.ndim != 1 or values.ndim != 2 or values.shape[1] != steps.size:
            raise ValueError(
                f"preset {name!r} has steps {steps.shape}, values {values.shape}; expected [N] and [seeds, N]"
            )
        some = np.isfinite(values).any(axis=0)
        seeds = int(np.isfinite(values).any(axis=1).sum())
        values = np.where(np.isfinite(values), values, np.nan)[:, some]
        if not seeds:
            continue
        lower, median, upper = np.nanquantile(values, [0.25, 0.5, 0.75], axis=0)
        (line,) = axis.plot(steps[some], median, marker=_marker(median), label=f"{name} (n = {seeds})")
        axis.fill_between(steps[some], lower, upper, color=line.get_color(), alpha=0.2, linewidth=0)
    axis.set_ylabel(f"{quantity}: median, quartiles")
    _label_steps(axis)
    _legend([axis])


def save_figure(figure: Figure, path: Path) -> None:
    """Write the figure as PNG, whole or not at all."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    write_file(path, picture.getvalue())


def _draw_returns(axis: Axes, metrics: Metrics) -> None:
    axis.set_ylabel("return per episode [1]")
    _line(axis, metrics, "episode_return", "training", color="tab:blue", alpha=0.35, linewidth=0.8)
    _line(axis, metrics, "return_mean", "evaluation", color="tab:blue")
    success = axis.twinx()
    success.set_ylabel("success [1]")
    success.set_ylim(-0.03, 1.03)
    _line(
        success,
        metrics,
        "success_fraction",
        "time at goal",
        color="tab:green",
        alpha=0.35,
        linewidth=0.8,
    )
    _line(success, metrics, "success_rate", "success rate", color="tab:green")
    _legend([axis, success])


def _draw_entropy(axis: Axes, metrics: Metrics) -> None:
    axis.set_ylabel("entropy [nat]")
    _line(axis, metrics, "entropy", "entropy", color="tab:blue")
    _line(axis, metrics, "target_entropy", "target", color="tab:blue", linestyle="--", linewidth=1)
    alpha = axis.twinx()
    alpha.set_ylabel("alpha [1]")
    if _line(alpha, metrics, "alpha", "alpha", positive=True, color="tab:orange"):
        alpha.set_yscale("log")
    _legend([axis, alpha])


def _draw_scales(axis: Axes, metrics: Metrics) -> None:
    axis.set_ylabel("loss scale [1]")
    drawn = False
    for part, color in _PARTS:
        drawn |= _line(axis, metrics, f"{part}_scale", part, positive=True, color=color, drawstyle="steps-post")
    if drawn:
        axis.set_yscale("log", base=2)
    skipped = axis.twinx()
    skipped.set_ylabel("skipped updates so far")
    for part, color in _PARTS:
        _line(
            skipped,
            metrics,
            f"skipped_{part}",
            f"{part} skipped",
            color=color,
            linestyle=":",
            drawstyle="steps-post",
        )
    skipped.set_ylim(bottom=0)
    skipped.yaxis.set_major_locator(MaxNLocator(integer=True))
    _legend([axis, skipped])


def _draw_speed(axis: Axes, metrics: Metrics) -> None:
    axis.set_ylabel("updates [1/s]")
    _line(axis, metrics, "updates_per_s", "updates per second", color="tab:blue")
    axis.set_ylim(bottom=0)
    ratio = axis.twinx()
    ratio.set_ylabel("updates per environment step [1]")
    _line(ratio, metrics, "utd_ratio", "achieved update-to-data ratio", color="tab:red")
    ratio.set_ylim(bottom=0)
    _legend([axis, ratio])


_PARTS = (("critic", "tab:blue"), ("actor", "tab:orange"), ("alpha", "tab:green"))


def _line(axis: Axes, metrics: Metrics, column: str, label: str, positive: bool = False, **style: Any) -> bool:
    """Draw a column over the steps; return True if it has a point (a positive one for a logarithmic axis)."""
    if column not in metrics:
        return False
    values = np.asarray(metrics[column], dtype=float)
    there = np.isfinite(values) & (values > 0 if positive else True)
    if not there.any():
        return False
    axis.plot(np.asarray(metrics["step"])[there], values[there], label=label, marker=_marker(values[there]), **style)
    return True


def _marker(values: NDArray[Any]) -> str:
    """Return the marker that keeps few points visible: a line of one has no length."""
    return "o" if values.size < 3 else ""


def _figure(title: str, height: float = 7.0) -> Figure:
    figure = Figure(figsize=(11, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    if title:
        figure.suptitle(title)
    return figure


def _label_steps(axis: Axes) -> None:
    axis.set_xlabel("environment steps")
    axis.xaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{value / 1000:g}k" if value >= 1000 else f"{value:g}")
    )


def _legend(axes: Sequence[Axes]) -> None:
    """Put one legend for all lines above the last of the axes; say so when there is no line."""
    drawn = [axis.get_legend_handles_labels() for axis in axes]
    handles = [handle for some, _ in drawn for handle in some]
    labels = [label for _, some in drawn for label in some]
    if handles:
        # Above, since a place inside that is free of one axis's lines may hold the other's.
        axes[-1].legend(
            handles,
            labels,
            loc="lower center",
            bbox_to_anchor=(0.5, 1.0),
            ncols=3 if len(labels) > 4 else 4,
            fontsize="small",
            frameon=False,
        )
    else:
        axes[0].text(0.5, 0.5, "no data yet", transform=axes[0].transAxes, ha="center", va="center")
