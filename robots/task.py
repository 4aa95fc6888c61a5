"""What a robot is to achieve: the interface of a task, and how success is counted."""

from dataclasses import dataclass
from typing import Protocol

from robots.robot import RobotState
from robots.spec import RobotSpec


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a task says of one control step."""

    reward: float
    """In [0, 1]."""
    terminated: bool
    """The task has ended by success or failure; running out of time is not its business."""
    success_fraction: float
    """Share of the whole judged window, in [0, 1], in which the goal has held so far."""


class JudgedWindow:
    """The last part of a full episode, and in how many of its steps the goal has held."""

    def __init__(self, spec: RobotSpec) -> None:
        self._length = round(spec.task.judged_time * spec.control_hz)
        self._first = spec.episode_steps - self._length
        self.reset()

    def reset(self) -> None:
        """Begin an episode."""
        self._step = 0
        self._held = 0

    def count(self, holds: bool) -> float:
        """Return the share of the whole window in which the goal has held, one control step later."""
        self._step += 1
        if holds and self._step > self._first:
            self._held += 1
        return self._held / self._length


class Task(Protocol):
    """A goal judged from measured states, step by step."""

    def reset(self) -> None:
        """Forget the last episode."""
        ...

    def step(self, state: RobotState) -> Outcome:
        """Return the outcome of the control step that led to state."""
        ...
