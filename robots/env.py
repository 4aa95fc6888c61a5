"""A robot and its task as a Gymnasium environment, the safety filter included.

reset(seed=s) alone determines an episode: robot, speed filters and task all start afresh.
"""

from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from robots.action import ActionScale
from robots.observation import Observer
from robots.robot import Robot, RobotState, Vector
from robots.safety import joint_limits, limit_target
from robots.spec import RobotSpec
from robots.task import Task


class RobotEnv(gymnasium.Env[Vector, Vector]):
    """One robot doing one task; actions [A] in [-1, 1], observations [O] in SI units.

    info carries "applied" (the command really sent, SI, [A]) and "success_fraction"; at the episode's end
    also "success". The task's time limit truncates. Raises UnsafeCommand for an action that is not finite
    and SensorFault for a reading that is not.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # type: ignore[misc]

    def __init__(self, robot: Robot, task: Task) -> None:
        self._robot = robot
        self._task = task
        spec = robot.spec
        self._dt = spec.dt
        self._episode_steps = spec.episode_steps
        self._success_share = spec.task.success_share
        self._driven = np.array([spec.joint.index(joint) for joint in spec.actuated])
        self._observer = Observer(spec)
        self._scale = ActionScale(spec)
        self._limits = joint_limits(spec)
        self._state: RobotState | None = None
        self._steps = 0
        self.action_space = spaces.Box(-1.0, 1.0, (len(spec.actuated),), np.float32)
        self.observation_space = spaces.Box(self._observer.lower, self._observer.upper, dtype=np.float32)

    @property
    def robot_spec(self) -> RobotSpec:
        """Return the robot's description."""
        return self._robot.spec

    @property
    def robot(self) -> Robot:
        """Return the robot that is driven."""
        return self._robot

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Vector, dict[str, Any]]:
        """Return the first observation [O] of a new episode, and info."""
        super().reset(seed=seed, options=options)
        self._state = self._robot.reset(self.np_random)
        self._task.reset()
        self._steps = 0
        applied = np.zeros(len(self._driven), dtype=np.float32)
        observation = self._observer.reset(self._state, applied)
        return observation, {"applied": applied, "success_fraction": 0.0}

    def step(self, action: Vector) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        """Return observation [O], reward in [0, 1], terminated, truncated and info, one period later."""
        if self._state is None:
            raise gymnasium.error.ResetNeeded("step before reset: call reset first")
        target = self._scale.target(np.asarray(action, dtype=np.float32))
        measured = self._state.position[self._driven]
        applied = limit_target(target, measured, self._observer.speed[self._driven], self._limits, self._dt)
        self._robot.command(applied)
        self._state = self._robot.read()
        observation = self._observer.observe(self._state, self._scale.action(applied))
        outcome = self._task.step(self._state)
        self._steps += 1
        truncated = self._steps >= self._episode_steps and not outcome.terminated
        info: dict[str, Any] = {"applied": applied, "success_fraction": outcome.success_fraction}
        if outcome.terminated or truncated:
            info["success"] = outcome.success_fraction >= self._success_share
        return observation, outcome.reward, outcome.terminated, truncated, info

    def close(self) -> None:
        """Let go of the robot."""
        self._robot.close()
