"""What a robot is to achieve: the interface of a task, and the one a description names."""

from dataclasses import dataclass
from typing import Protocol

from robots.errors import SpecError
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


class Task(Protocol):
    """A goal judged from measured states, step by step."""

    def reset(self) -> None:
        """Forget the last episode."""
        ...

    def step(self, state: RobotState) -> Outcome:
        """Return the outcome of the control step that led to state."""
        ...


def make_task(spec: RobotSpec) -> Task:
    """Return the task that the description names. Raises SpecError for an unknown one."""
    from robots.furuta import SwingUp
    from robots.reach import Reach

    tasks: dict[str, type[SwingUp] | type[Reach]] = {"furuta-swing-up": SwingUp, "reach-zero": Reach}
    if spec.task.name not in tasks:
        raise SpecError(f"{spec.name}: task.name = {spec.task.name!r}: expected one of {sorted(tasks)}")
    return tasks[spec.task.name](spec)
