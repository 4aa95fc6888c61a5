"""The tasks there are, by the name a description gives."""

from robots.errors import SpecError
from robots.furuta import SwingUp
from robots.reach import Reach
from robots.spec import RobotSpec
from robots.task import Task

TASKS: dict[str, type[SwingUp] | type[Reach]] = {"furuta-swing-up": SwingUp, "reach-zero": Reach}


def make_task(spec: RobotSpec) -> Task:
    """Return the task that the description names. Raises SpecError for an unknown one."""
    if spec.task.name not in TASKS:
        raise SpecError(f"{spec.name}: task.name = {spec.task.name!r}: expected one of {sorted(TASKS)}")
    return TASKS[spec.task.name](spec)
