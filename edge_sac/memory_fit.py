"""Whether a run fits the memory there is, and if not, what would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from edge_sac.byte_size import mebibytes
from edge_sac.config import Config
from edge_sac.errors import ConfigError
from edge_sac.plan import Plan, Sizes, plan_of

LEANER: tuple[dict[str, str], ...] = (
    {"precision": "fp16"},
    {"gradients": "in-place"},
    {"storage": "u8"},
    {"rounding": "stochastic"},
    {"moments": "8bit"},
)
"""Settings that take less memory, the most harmless first: half precision with its six fixes; the same gradients, used
up at once; then what is stored more coarsely, the replay, the parameters, the moments."""


@dataclass(frozen=True)
class Room:
    """Memory that a run may take."""

    bytes: int
    source: str
    """Who says so."""
    besides: int = 0
    """What the process holds beside its plan."""
    on_gpu: bool | None = None
    """Whether this is a GPU's own memory, or what is beside it; None where all is one."""

    def needed(self, plan: Plan) -> int:
        """Return the bytes of it that a run takes at its peak."""
        return self.besides + plan.peak(on_gpu=self.on_gpu)


def refusal(config: Config, sizes: Sizes, rooms: Sequence[Room]) -> str:
    """Return why a run does not fit and what would; empty where it fits."""
    plan = plan_of(config, sizes)
    for room in rooms:
        needed = room.needed(plan)
        if needed > room.bytes:
            what = f"this run needs {mebibytes(needed)} at its peak and {mebibytes(room.bytes)} can be had"
            return f"{what} ({room.source}): {'; or '.join(_remedies(config, sizes, rooms, plan))}"
    return ""


def _remedies(config: Config, sizes: Sizes, rooms: Sequence[Room], plan: Plan) -> Iterator[str]:
    most = largest_replay(config, sizes, rooms)
    if most:
        yield f"set replay_capacity = {most} or less ({plan.capacity} now, {plan.row_bytes} bytes each)"
    leaner = ", ".join(f"{line} ({mebibytes(saved)})" for line, saved in savings(config, sizes))
    if leaner:
        yield f"save with {leaner}"
    if not most:
        yield "lower agent.hidden or agent.batch: no replay is small enough"
    yield "close other programs"


def fits(config: Config, sizes: Sizes, rooms: Sequence[Room]) -> bool:
    """Return whether a run fits in all rooms."""
    plan = plan_of(config, sizes)
    return all(room.needed(plan) <= room.bytes for room in rooms)


def largest_replay(config: Config, sizes: Sizes, rooms: Sequence[Room]) -> int:
    """Return how many transitions, up to the configured number, a replay may have to fit; 0 where not even one does."""
    low, high = 0, config.replay_capacity + 1
    while high - low > 1:
        middle = (low + high) // 2
        if fits(msgspec.structs.replace(config, replay_capacity=middle), sizes, rooms):
            low = middle
        else:
            high = middle
    return low


def savings(config: Config, sizes: Sizes) -> list[tuple[str, int]]:
    """Return each setting that takes less, as a line of TOML, and the bytes it saves alone; the most harmless first."""
    now = plan_of(config, sizes).peak()
    found = []
    for change in LEANER:
        try:
            saved = now - plan_of(msgspec.structs.replace(config, **change), sizes).peak()
        except ConfigError:  # not with this precision
            continue
        if saved > 0:
            ((key, value),) = change.items()
            found.append((f'{key} = "{value}"', saved))
    return found
