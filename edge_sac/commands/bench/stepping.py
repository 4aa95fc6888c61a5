"""Environments as candidates, and under the twins the bare loop of their physics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edge_sac.commands.bench.candidate import Candidate, Work
from edge_sac.errors import ConfigError
from robots.robot_file import load_robot
from robots.spec import RobotSpec
from sim.gravity import GRAVITY
from sim.registration import ASSETS, make_env

ROBOT = "furuta"
TWINS = ("pybullet", "equations")
BARE = "bare "
ACTIONS = 1024


def build(work: Work) -> Candidate:
    """Return what `work.variant` names: a twin's physics, `bare` and these, or the id of an environment."""
    if work.variant.startswith(BARE):
        loops = {"pybullet": bare_pybullet, "equations": bare_equations}
        return Candidate({"step": loops[work.variant.removeprefix(BARE)](load_robot(ROBOT))})
    if work.variant in TWINS:
        return Candidate({"step": stepper(make_env(ROBOT, work.variant))})
    from edge_sac.commands.environment import environment
    from edge_sac.config import Config

    return Candidate({"step": stepper(environment(Config(env=work.variant)).make())})


def stepper(env: Any) -> Callable[[], None]:
    """Return what takes one step with a random action, and a reset where an episode ended: what training sees."""
    space = env.action_space
    rng = np.random.default_rng(0)
    actions = rng.uniform(space.low, space.high, (ACTIONS, *space.shape)).astype(space.dtype)
    env.reset(seed=0)
    turn = 0

    def step() -> None:
        nonlocal turn
        turn = (turn + 1) % ACTIONS
        _, _, terminated, truncated, _ = env.step(actions[turn])
        if terminated or truncated:
            env.reset()

    return step


def _substeps(spec: RobotSpec) -> int:
    return max(1, round(spec.dt / spec.sim.substep))


def bare_equations(spec: RobotSpec) -> Callable[[], None]:
    """Return what integrates one control period of the equations of motion, without actuator, sensor or task."""
    from sim.furuta_equations import advance, furuta_body

    body, count = furuta_body(ASSETS / spec.sim.asset), _substeps(spec)
    dt = spec.dt / count
    motion = (0.0, 1.0, 0.0, 0.0)

    def step() -> None:
        nonlocal motion
        for _ in range(count):
            motion = advance(body, motion, 0.01, 0.0, dt)

    return step


def bare_pybullet(spec: RobotSpec) -> Callable[[], None]:
    """Return one control period of PyBullet with what no user can leave out: set torques, step, read the joints."""
    try:
        import pybullet
    except ImportError as error:
        raise ConfigError("PyBullet is not installed; pip install 'edge-sac[sim]'") from error
    client = pybullet.connect(pybullet.DIRECT)
    count = _substeps(spec)
    pybullet.setGravity(0.0, 0.0, -GRAVITY, physicsClientId=client)
    pybullet.setTimeStep(spec.dt / count, physicsClientId=client)
    body = pybullet.loadURDF(str(ASSETS / spec.sim.asset), useFixedBase=True, physicsClientId=client)
    joints = [
        joint
        for joint in range(pybullet.getNumJoints(body, physicsClientId=client))
        if pybullet.getJointInfo(body, joint, physicsClientId=client)[2] != pybullet.JOINT_FIXED
    ]
    torques = [0.01] + [0.0] * (len(joints) - 1)

    def step() -> None:
        for _ in range(count):
            pybullet.setJointMotorControlArray(
                body, joints, pybullet.TORQUE_CONTROL, forces=torques, physicsClientId=client
            )
            pybullet.stepSimulation(physicsClientId=client)
            pybullet.getJointStates(body, joints, physicsClientId=client)

    return step
