"""The table and the figure of the options of memory: what each saves, and what it costs in learning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from edge_sac.atomic import write_file
from edge_sac.commands.grids import ENVIRONMENTS, folder
from edge_sac.commands.results_cells import Result, by_variant, curve, read_cells
from edge_sac.plots import results_panels, save_figure

REFERENCES = ("fp32", "fp16")
HEAD = """# Options of memory: what each saves, and what it costs in learning

Remade by `edge-sac reproduce memory`, which trains what is missing and draws this page from the files in
`docs/results/memory/`. Every variant but fp32 is fp16 with what its name says; leanest is stochastic, 8bit and in-place
together. A seed's return is the mean of 10 fresh episodes, which played no part in training or in choosing the policy:
*best* is the exported policy, chosen by evaluations during training on another set of episodes, *last* the one that
training ended with. *Held* is the share of the judged time in which the goal held. Over the n seeds stand the median
and, in brackets, the quartiles; ratios are of the means over seeds. State is what a checkpoint holds of the learner,
gradients not among it; replay is the map's file over its capacity.
"""


def write_memory(cells: Path, names: Sequence[str]) -> None:
    """Write `cells`.md and `cells`.png from the cells that are there."""
    parts, panels = [HEAD], {}
    found = {
        environment: read_cells(cells, [name for name in names if name.startswith(f"{folder(environment)}/")])
        for environment in ENVIRONMENTS
    }
    every = [cell for some in found.values() for cell in some]
    if every:
        machines, commits = (sorted({cell[key] for cell in every}) for key in ("machine", "commit"))
        parts.append(f"\nMachine: {'; '.join(machines)}. Commit: {', '.join(commits)}.\n")
        parts.append(f"\n![evaluation return over steps]({cells.name}.png)\n")
    for environment, some in found.items():
        if some:
            parts.append(_section(environment, some))
            eval_every = max(cell["config"]["eval_every"] for cell in some)
            panels[environment] = {
                variant: curve(seeds, "return_mean", eval_every) for variant, seeds in by_variant(some).items()
            }
    write_file(cells.with_suffix(".md"), "".join(parts).encode())
    save_figure(results_panels(panels, "return per episode [1]"), cells.with_suffix(".png"))


def _section(environment: str, found: Sequence[Result]) -> str:
    config = found[0]["config"]
    agent = config["agent"]
    variants = by_variant(found)
    held = found[0]["best"]["success_fraction"] is not None
    titles = ["variant", "n", "return, best", "return, last", *(["held, best", "held, last"] if held else [])]
    titles += [f"best / last over {name}'s" for name in REFERENCES]
    titles += ["state, bytes", "replay, B per transition", "CPU min"]
    lines = [
        f"\n## {environment}\n\n",
        f"{config['steps']} steps, {'-'.join(map(str, agent['hidden']))}, batch {agent['batch']}, learning rates "
        f"{agent['critic_lr']:g} (critic), {agent['actor_lr']:g} (actor), {agent['alpha_lr']:g} (alpha), "
        f"{config['updates_per_step']:g} updates per step.\n\n",
        f"| {' | '.join(titles)} |\n",
        "| --- " * len(titles) + "|\n",
    ]
    for variant, some in variants.items():
        row = [variant, str(len(some)), *(_spread(some, _judged(which, "return_mean")) for which in ("best", "last"))]
        if held:
            row += [_spread(some, _judged(which, "success_fraction", 100), " %") for which in ("best", "last")]
        row += [_ratios(some, variants.get(name, [])) for name in REFERENCES]
        row += [
            f"{np.median([cell['state_bytes'] for cell in some]):,.0f}",
            f"{np.median([cell['replay_bytes'] / cell['config']['replay_capacity'] for cell in some]):.1f}",
            f"{np.median([cell['cpu_s'] for cell in some]) / 60:.1f}",
        ]
        lines.append(f"| {' | '.join(row)} |\n")
    return "".join(lines)


def _judged(which: str, quantity: str, factor: float = 1) -> Callable[[Result], float]:
    return lambda cell: factor * float(cell[which][quantity])


def _spread(some: Sequence[Result], value: Callable[[Result], float], unit: str = "") -> str:
    lower, median, upper = np.quantile([value(cell) for cell in some], [0.25, 0.5, 0.75])
    return f"{median:.1f}{unit} [{lower:.1f}, {upper:.1f}]"


def _ratios(some: Sequence[Result], reference: Sequence[Result]) -> str:
    """Return the ratio of mean returns, best and last; a dash where the reference is not there or learned nothing."""
    shown = []
    for which in ("best", "last"):
        mean, other = (
            np.mean([cell[which]["return_mean"] for cell in cells]) if cells else 0.0 for cells in (some, reference)
        )
        shown.append(f"{mean / other:.3f}" if other > 0 else "-")
    return " / ".join(shown)
