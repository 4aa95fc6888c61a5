"""A task for any robot: bring its first joint to 0."""

from robots.robot import RobotState
from robots.spec import RobotSpec
from robots.task import Outcome


class Reach:
    """Bring the first joint to 0: reward 1 there, 0 at the end of its range, which terminates the episode."""

    def __init__(self, spec: RobotSpec) -> None:
        self._limit = max(abs(bound) for bound in spec.joint[0].position)
        self._tolerance = spec.task.goal_tolerance
        self._judged_steps = round(spec.task.judged_time * spec.control_hz)
        self._first_judged = spec.episode_steps - self._judged_steps
        self._step = 0
        self._held = 0

    def reset(self) -> None:
        """Forget the last episode."""
        self._step = 0
        self._held = 0

    def step(self, state: RobotState) -> Outcome:
        """Return the outcome of the control step that led to state."""
        distance = abs(float(state.position[0]))
        self._step += 1
        if self._step > self._first_judged and distance <= self._tolerance:
            self._held += 1
        reward = max(0.0, 1.0 - distance / self._limit)
        return Outcome(reward, distance >= self._limit, self._held / self._judged_steps)
