"""The task of the rotary inverted (Furuta) pendulum: swing up, balance, keep the arm off its cable limit.

Joint angles: arm 0 is the middle of its cable, pendulum 0 hangs and pi stands upright.
"""

import math

from robots.errors import SpecError
from robots.robot import RobotState
from robots.spec import RobotSpec
from robots.task import JudgedWindow, Outcome

ARM_WEIGHT = 0.5
"""Share of the reward lost with the arm at its cable limit: centres it without stopping a swing."""

CALM_SPEED = 5.0
"""[rad/s] of the pendulum at which half the reward is lost: going round and round, passing upright at 7 rad/s
or more, must pay far less than standing there (by height alone it pays half, and a learner stays with it)."""


class SwingUp:
    """Swing-up and balance.

    The reward of a step is height * arm * calm, in [0, 1], where height = (1 - cos pendulum) / 2 is 0 hanging
    and 1 upright, arm = 1 - ARM_WEIGHT * (arm / cable limit)^2, and calm = 1 / (1 + (speed / CALM_SPEED)^2)
    of the pendulum, by the difference of its encoder's last two readings. The arm at or beyond its cable
    limit terminates the episode, which forfeits all later reward. The goal holds while the pendulum is within
    goal_tolerance of upright; steps not reached because the episode terminated count as not upright.
    """

    def __init__(self, spec: RobotSpec) -> None:
        names = [joint.name for joint in spec.joint]
        if names != ["arm", "pendulum"]:
            raise SpecError(f"{spec.name}: joint names are {names}: task furuta-swing-up expects ['arm', 'pendulum']")
        self._lower, self._upper = spec.joint[0].position
        self._upright = -math.cos(spec.task.goal_tolerance)
        self._window = JudgedWindow(spec)

    def reset(self) -> None:
        """Forget the last episode."""
        self._window.reset()

    def step(self, state: RobotState) -> Outcome:
        """Return the outcome of the control step that led to state."""
        arm, cosine = float(state.position[0]), math.cos(float(state.position[1]))
        terminated = not self._lower < arm < self._upper
        middle, half = (self._lower + self._upper) / 2, (self._upper - self._lower) / 2
        share = (arm - middle) / half
        centred = max(0.0, 1.0 - ARM_WEIGHT * share * share)
        hurry = float(state.speed[1]) / CALM_SPEED
        return Outcome(
            reward=0.5 * (1.0 - cosine) * centred / (1.0 + hurry * hurry),
            terminated=terminated,
            success_fraction=self._window.count(cosine <= self._upright),
        )
