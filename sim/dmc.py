"""The DeepMind Control Suite's tasks as Gymnasium environments, without a renderer.

The suite draws everything random of an episode from one generator while it resets, and leaves nothing of the physics
of earlier episodes; so reset(seed=s) alone determines an episode, and it is the one that the suite's own
`load(..., task_kwargs={"random": s})` begins with.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium import spaces

from robots.errors import RobotError
from robots.robot import Vector

RENDERER = "MUJOCO_GL"


class PhysicsDiverged(RobotError):
    """The simulated physics left the numbers: an action was not finite, or the model blew up."""


class DmcEnv(gymnasium.Env[Vector, Vector]):
    """One task of the suite, named domain-task; actions [A] and observations [O] are flat and float32.

    Observations are the suite's, in its order, named name[i], or name alone where it is a number. An action is held for
    `action_repeat` control periods and their rewards are added. The time limit truncates; only physics that the task
    ends with a discount of 0 terminate. Raises ResetNeeded for a step outside an episode and PhysicsDiverged.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}  # type: ignore[misc]

    def __init__(self, name: str, *, action_repeat: int = 1) -> None:
        if action_repeat < 1:
            raise ValueError(f"action_repeat is {action_repeat}; an action is held for at least 1 period")
        with _no_renderer():
            from dm_control import suite
            from dm_control.rl.control import PhysicsError
        self._diverged: type[Exception] = PhysicsError
        self._repeat = action_repeat
        self._env = suite.load(*name.split("-", 1))
        self._running = False
        observed, driven = self._env.observation_spec(), self._env.action_spec()
        self._parts = tuple(observed)
        self._names = tuple(
            f"{part}[{i}]" if spec.shape else part
            for part, spec in observed.items()
            for i in range(int(np.prod(spec.shape)))
        )
        model = self._env.physics.model
        self._driven = tuple(model.id2name(i, "actuator") or f"action[{i}]" for i in range(driven.shape[0]))
        self.observation_space = spaces.Box(-np.inf, np.inf, (len(self._names),), np.float32)
        self.action_space = spaces.Box(driven.minimum.astype(np.float32), driven.maximum.astype(np.float32))

    @property
    def observation_names(self) -> tuple[str, ...]:
        """Return the names of the observation's channels, in order."""
        return self._names

    @property
    def action_names(self) -> tuple[str, ...]:
        """Return the names of the actuators, in order."""
        return self._driven

    @property
    def control_hz(self) -> float:
        """Return the rate at which actions are chosen."""
        return 1.0 / (float(self._env.control_timestep()) * self._repeat)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Vector, dict[str, Any]]:
        """Return the first observation [O] of a new episode; without a seed the generator goes on."""
        super().reset(seed=seed, options=options)
        if seed is not None:
            self._env.task.random.seed(seed)
        first = self._env.reset()
        self._running = True
        return self._flat(first.observation), {}

    def step(self, action: Vector) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        """Return observation [O], reward, terminated, truncated and info, `action_repeat` periods later."""
        if not self._running:
            raise gymnasium.error.ResetNeeded("step outside an episode: call reset first")
        total = 0.0
        try:
            for _ in range(self._repeat):
                now = self._env.step(action)
                total += now.reward
                if now.last():
                    self._running = False
                    break
        except self._diverged as error:
            self._running = False
            raise PhysicsDiverged(f"the physics diverged under action {action}: {error}") from error
        terminated = now.last() and now.discount == 0.0
        return self._flat(now.observation), float(total), terminated, now.last() and not terminated, {}

    def close(self) -> None:
        """Free the physics; a second call does nothing."""
        self._running = False
        self._env.close()

    def _flat(self, observation: dict[str, Any]) -> Vector:
        return np.concatenate([np.ravel(observation[part]) for part in self._parts], dtype=np.float32)


@contextmanager
def _no_renderer() -> Iterator[None]:
    """While the suite is imported, keep it from looking for OpenGL, unless the user chose a renderer.

    The search costs 0.4 s and 57 MiB, and warns where there is no display.
    """
    chosen = os.environ.get(RENDERER)
    if not chosen:
        os.environ[RENDERER] = "disabled"
    try:
        yield
    finally:
        if chosen is None:
            del os.environ[RENDERER]
        else:
            os.environ[RENDERER] = chosen
