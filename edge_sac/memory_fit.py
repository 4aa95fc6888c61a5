"""Whether a run fits the memory there is, and if not, what would."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from edge_sac.byte_size import mebibytes
from edge_sac.config import MOST_TRANSITIONS, Config
from edge_sac.errors import ConfigError, Refused
from edge_sac.memory_available import available_memory, gpu_left
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

OWN_GPU = "the GPU's own memory, beside its context"


@dataclass(frozen=True)
class Room:
    """Memory that a run may take."""

    bytes: int
    source: str
    """Who says so."""
    besides: int = 0
    """What the process holds beside its plan."""
    report: int = 0
    """What it takes beside that at its end, when the replay is closed."""
    on_gpu: bool | None = None
    """Whether this is a GPU's own memory, or what is beside it; None where all is one."""

    def needed(self, plan: Plan) -> int:
        """Return the bytes of it that a run takes at its peak."""
        training = self.besides + plan.peak(on_gpu=self.on_gpu)
        return max(training, training - plan.of("replay", on_gpu=self.on_gpu) + self.report)


def check_fits(config: Config, sizes: Sizes) -> None:
    """Raise Refused when the buffers of a run do not fit what this process can still have.

    What libraries take at their first use is not in it: `edge-sac plan` measures that too.
    """
    memory = available_memory()
    left = gpu_left() if config.device == "cuda" else None
    rooms = [Room(memory.bytes, memory.source, on_gpu=None if left is None else False)]
    if left is not None:
        rooms.append(Room(left, OWN_GPU, on_gpu=True))
    problem = refusal(config, sizes, rooms)
    if problem:
        raise Refused(problem)


def refusal(config: Config, sizes: Sizes, rooms: Sequence[Room]) -> str:
    """Return why a run does not fit and what would; empty where it fits."""
    if fits(config, sizes, rooms):
        return ""
    plan = plan_of(config, sizes)
    room = next((room for room in rooms if room.needed(plan) > room.bytes), rooms[0])
    what = f"this run needs {mebibytes(room.needed(plan))} at its peak and {mebibytes(room.bytes)} can be had"
    return f"{what} ({room.source}): {'; or '.join(_remedies(config, sizes, rooms, plan))}"


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
    """Return whether a run fits in all rooms, with a GPU's copy of the replay on either side."""
    plans = [plan_of(config, sizes, pinned=pinned) for pinned in (False, True)[: 1 + (config.device == "cuda")]]
    return any(all(room.needed(plan) <= room.bytes for room in rooms) for plan in plans)


def largest_replay(config: Config, sizes: Sizes, rooms: Sequence[Room]) -> int:
    """Return the most transitions that a replay may have to fit; 0 where not even one does."""
    low, high = 0, MOST_TRANSITIONS + 1
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
