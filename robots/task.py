"""What a robot is to achieve: the interface of a task."""

from dataclasses import dataclass
from typing import Protocol

from robots.robot import RobotState


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a task says of one control step."""

    reward: float
    """In [0, 1]."""
    terminated: bool
    """The task has ended by success or failure; running out of time is not its business."""
    success_fraction: float
    """Share of the whole judged window, in [0, 1], in which the goal has held so far."""


class Task(Protocol):
    """A goal judged from measured states, step by step."""

    def reset(self) -> None:
        """Forget the last episode."""
        ...

    def step(self, state: RobotState) -> Outcome:
        """Return the outcome of the control step that led to state."""
        ...
