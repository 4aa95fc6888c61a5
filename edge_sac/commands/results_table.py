"""The table and the figure of the runs on the Furuta pendulum, from their cells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from edge_sac.atomic import write_file
from edge_sac.commands.results_cells import Result, by_variant, curve, read_cells
from edge_sac.plots import results_figure, save_figure

NEEDED = 0.9
"""Share of the judged time in which the goal must hold, mean of the judged episodes."""
CURVE_STEP = 2_500

HEAD = """# Furuta pendulum: swing up and balance

Remade by `edge-sac reproduce furuta`, which trains what is missing and draws this page from the files in
`docs/results/furuta/`. *Held* is the share of the last 5 s of a 10 s episode in which the pendulum is within 10 degrees
of upright, mean of 10 episodes that played no part in training or in choosing the policy. *Best* is the exported
policy, chosen by evaluations during training on another set of episodes; *last* is the one training ended with. A seed
counts as learned when its best policy holds at least 90 %. Minutes are wall-clock with two runs side by side on two
cores, where other work ran at times; CPU minutes are the process's own.

fp16-target-kahan is the paper's Kahan-momentum in place of the lag-coded target; fp16-plain-actor leaves the actor's
steps uncompensated, as the released code does; fp16-long is the default trained on to 100,000 steps.

"""


def write_results(cells: Path, names: Sequence[str]) -> None:
    """Write `cells`.md and `cells`.png from the cells that are there."""
    found = read_cells(cells, names)
    variants = by_variant(found)
    parts = [HEAD]
    if found:
        machines = sorted({cell["machine"] for cell in found})
        parts.append(
            f"Machine: {'; '.join(machines)}. Physics: {', '.join(sorted({c['physics'] for c in found}))}.\n\n"
        )
        parts.append(f"![held over steps]({cells.name}.png)\n")
    parts += [_section(variant, some) for variant, some in variants.items()]
    write_file(cells.with_suffix(".md"), "".join(parts).encode())
    curves = {variant: curve(some, "success_fraction", CURVE_STEP) for variant, some in variants.items()}
    figure = results_figure(curves, quantity="share of the last 5 s balanced [1]")
    save_figure(figure, cells.with_suffix(".png"))


def _section(variant: str, found: Sequence[Result]) -> str:
    learned = sum(cell["best"]["success_fraction"] >= NEEDED for cell in found)
    lines = [
        f"\n## {variant}: {learned} of {len(found)} seeds learned\n\n",
        "| seed | steps | held, best | held, last | return, best | best at step | min | CPU min "
        "| skipped critic / actor / alpha | in a row at the end | scale | weights moving, critic / actor "
        "| largest critic weight |\n",
        "| --- " * 13 + "|\n",
    ]
    for cell in found:
        best, last, learner, alive = cell["best"], cell["last"], cell["learner"], cell["alive"]
        skipped = " / ".join(f"{learner[f'skipped_{name}']:.0f}" for name in ("critic", "actor", "alpha"))
        lines.append(
            f"| {cell['seed']} | {cell['steps']} | {100 * best['success_fraction']:.1f} % "
            f"| {100 * last['success_fraction']:.1f} % | {best['return_mean']:.1f} | {cell['best_step']} "
            f"| {cell['wall_s'] / 60:.1f} | {cell['cpu_s'] / 60:.1f} | {skipped} "
            f"| {alive['critic_skip_streak']:.0f} / {alive['actor_skip_streak']:.0f} | {learner['critic_scale']:g} "
            f"| {100 * alive['critic_moving']:.0f} % / {100 * alive['actor_moving']:.0f} % "
            f"| {cell['largest_critic_weight']:.2f} |\n"
        )
    return "".join(lines)
