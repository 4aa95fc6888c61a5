"""Bytes per parameter by role, of every option: the table of docs/performance.md."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from edge_sac.commands.grids import FURUTA, MEMORY
from edge_sac.config import AgentConfig, Config
from edge_sac.learner_buffers import Buffer, learner_buffers
from edge_sac.precision import precision_of

OBS, ACTION = 17, 6
"""As a planar walker has; the size that published comparisons use."""
WIDE = AgentConfig(hidden=(1024, 1024), batch=1024)
VARIANTS: dict[str, dict[str, Any]] = {
    name: changes
    for name, changes in (MEMORY | {"fp16-target-kahan": FURUTA["fp16-target-kahan"]}).items()
    if "storage" not in changes
}
ROLES = (("theta",), ("gradient",), ("m, w",), ("compensation",), ("lag", "target", "scaled target"))
"""By column. The scaled target's own compensation is counted with it."""


def bytes_table() -> str:
    """Return the table as Markdown."""
    found = {name: _buffers(Config(device="cpu", agent=WIDE, **changes)) for name, changes in VARIANTS.items()}
    first = next(iter(found.values()))
    lines = [
        "| | theta | gradient | m, w | compensation | target (critics) | critic | actor "
        "| state at 1024-1024 | of fp32's | with scratch | of fp32's |",
        "| --- " * 12 + "|",
    ]
    for name, buffers in found.items():
        cells = [name, *(_per_parameter(buffers, roles) for roles in ROLES)]
        cells += [_number(sum(_each(buffers, owner))) for owner in ("critic", "actor")]
        for kinds in (("state",), ("state", "scratch")):
            size = _sum(buffers, kinds)
            cells += [f"{size:,}", f"{size / _sum(first, kinds):.3f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _buffers(config: Config) -> list[Buffer]:
    # fp32 products: where a native fp16 one is taken, scratch and passes are smaller.
    return learner_buffers(OBS, ACTION, config.agent, precision_of(config), torch.float32, torch.device(config.device))


def _each(buffers: Sequence[Buffer], owner: str, roles: Sequence[str] = ()) -> list[float]:
    """Return the bytes per parameter of each state buffer of a network, of these roles or of all."""
    state = [one for one in buffers if one.kind == "state" and one.owner == owner]
    (theta,) = (one for one in state if one.role == "theta")
    return [one.bytes / theta.elements for one in state if not roles or _column(one.role) in roles]


def _column(role: str) -> str:
    return "scaled target" if role == "target's compensation" else role


def _per_parameter(buffers: Sequence[Buffer], roles: Sequence[str]) -> str:
    """Return the critics' bytes, and the actor's where they are others."""
    critic, actor = (_number(sum(_each(buffers, owner, roles))) for owner in ("critic", "actor"))
    return critic if actor in (critic, "0") else f"{critic}, {actor}"


def _sum(buffers: Sequence[Buffer], kinds: Sequence[str]) -> int:
    return sum(one.bytes for one in buffers if one.kind in kinds)


def _number(value: float) -> str:
    return f"{value:g}"
