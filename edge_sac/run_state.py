"""Where a run stands: what is saved of that, what is shown of it, and what may end it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol


class Stop(Protocol):
    """Whether the user wants the run to end."""

    @property
    def requested(self) -> bool:
        """True: end with the episode."""

    @property
    def urgent(self) -> bool:
        """True: end now, cutting the episode."""


@dataclass(frozen=True)
class Progress:
    """What a status line shows."""

    step: int
    steps: int
    episode_return: float
    success_rate: float | None
    alpha: float
    updates_per_s: float
    utd_ratio: float
    seconds_left: float
    message: str = ""


@dataclass
class Counters:
    """Where the run stands; saved in every checkpoint."""

    step: int = 0
    episode: int = 0
    """Training episodes begun."""
    owed: float = 0.0
    """Updates due and not yet made, below 1 between two steps."""
    next_eval: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    """Time trained and processor time used, over all resumes."""
    best_step: int = -1
    best_merit: tuple[float, float] = (0.0, 0.0)
    success_rate: float | None = None
    """Of the last evaluation."""
    logged_updates: int = 0
    """Updates made when the last window of LOG_STEPS steps ended."""
    returns: list[float] = field(default_factory=list)
    """Of the episodes that ended since."""


@dataclass(frozen=True)
class Recovery:
    """How replay and checkpoint stood to each other when a run was taken up; both are 0 after a clean stop."""

    newer: int = 0
    """Transitions in the replay that came after the checkpoint: the last process was killed."""
    missing: int = 0
    """Transitions the checkpoint knows of and the replay does not: its file was deleted."""
