"""A task for any robot: bring its first joint to 0."""

from robots.robot import RobotState
from robots.spec import RobotSpec
from robots.task import JudgedWindow, Outcome


class Reach:
    """Bring the first joint to 0: reward 1 there, 0 at the end of its range, which terminates the episode."""

    def __init__(self, spec: RobotSpec) -> None:
        self._limit = max(abs(bound) for bound in spec.joint[0].position)
        self._tolerance = spec.task.goal_tolerance
        self._window = JudgedWindow(spec)

    def reset(self) -> None:
        """Forget the last episode."""
        self._window.reset()

    def step(self, state: RobotState) -> Outcome:
        """Return the outcome of the control step that led to state."""
        distance = abs(float(state.position[0]))
        reward = max(0.0, 1.0 - distance / self._limit)
        return Outcome(reward, distance >= self._limit, self._window.count(distance <= self._tolerance))
