"""The grids of runs that the committed tables are made of, as data: variants, environments, seeds.

A variant is what differs from the default configuration; an environment is where, and how long it takes to learn there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from edge_sac.config import AgentConfig, Config

LONG, LONG_STEPS = "fp16-long", 100_000
FURUTA: dict[str, dict[str, Any]] = {
    "fp16": {},
    "fp32": {"precision": "fp32"},
    "fp16-target-kahan": {"target": "kahan"},
    "fp16-plain-actor": {"kahan_actor": False},
}
IN_PLACE = {"gradients": "in-place"}
STOCHASTIC = {"rounding": "stochastic"}
EIGHT_BIT = {"moments": "8bit"}
MEMORY: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32"},
    "fp16": {},
    "stochastic": STOCHASTIC,
    "8bit": EIGHT_BIT,
    "in-place": IN_PLACE,
    "leanest": STOCHASTIC | EIGHT_BIT | IN_PLACE,
    "u8": {"storage": "u8"},
    "just-round": {"storage": "just-round"},
}
"""Each option of memory alone, on top of fp16, and those of the learner together."""
SWINGUP = AgentConfig(
    hidden=(64, 64), batch=128, actor_lr=1e-3, critic_lr=1e-3, alpha_lr=1e-3, tau=0.02, target_period=1
)
"""The smallest found with which fp32 and fp16 pass a mean return of 750 on every seed tried, in 60,000 steps; with the
target moving eight times slower, as by default, they stay between 300 and 610 at 40,000."""
ENVIRONMENTS: dict[str, dict[str, Any]] = {
    "furuta": {},
    "dmc/cartpole-swingup": {
        "env": "dmc/cartpole-swingup",
        "steps": 60_000,
        "eval_every": 5_000,
        "agent": SWINGUP,
    },
}
STEP_S = 0.009
"""CPU time of a step with its update at 128-128, batch 256, median of docs/results/furuta: a guess until a cell is
there."""


@dataclass(frozen=True)
class Cell:
    """One run of a grid."""

    name: str
    """Of its file and its run folder, below those of the grid."""
    variant: str
    config: Config


def _steps(steps: int | None) -> dict[str, Any]:
    return {} if steps is None else {"steps": steps}


def furuta_grid(seeds: int, steps: int | None) -> list[Cell]:
    """Return the cells, those that matter most first: fp16 beside fp32, one long run, then the other variants."""

    def side_by_side(*variants: str) -> list[Cell]:
        return [
            Cell(f"{variant}-seed{seed}", variant, Config(seed=seed, **_steps(steps), **FURUTA[variant]))
            for seed in range(seeds)
            for variant in variants
        ]

    long = Cell(f"{LONG}-seed0", LONG, Config(seed=0, steps=steps or LONG_STEPS))
    return [*side_by_side("fp16", "fp32"), long, *side_by_side("fp16-target-kahan", "fp16-plain-actor")]


def memory_grid(seeds: int, steps: int | None) -> list[Cell]:
    """Return every option of memory in every environment, a whole seed before the next."""
    return [
        Cell(
            f"{folder(environment)}/{variant}-{seed}",
            variant,
            Config(seed=seed, **(where | changes | _steps(steps))),
        )
        for seed in range(seeds)
        for environment, where in ENVIRONMENTS.items()
        for variant, changes in MEMORY.items()
    ]


def folder(environment: str) -> str:
    """Return an environment's name as that of a folder."""
    return environment.replace("/", "-")


@dataclass(frozen=True)
class Grid:
    """What a table is made of."""

    cells: Callable[[int, int | None], list[Cell]]
    """From the number of seeds and, unless each its own, the number of steps."""
    seeds: int


GRIDS = {"furuta": Grid(furuta_grid, 5), "memory": Grid(memory_grid, 3)}
