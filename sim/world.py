"""One PyBullet world with one jointed body: built once, put back by restoring its state, closed for good.

PyBullet's defaults are not physics: links lose 4 % of their speed a second, joints are held by a velocity
motor and limited to 100 rad/s; all that is switched off here. Every call names its client, since the default
one is whichever was opened last. The simulation is never reset, which leaks.

The hard idea: Bullet's step adds acceleration to speed, then the new speed to position. Read as a leapfrog,
whose speeds belong to half a step before the positions, that is accurate to second order, but for the forces
that depend on speed: Bullet takes these at the speed half a step old, and a pendulum loses 8 % of its energy
in 10 s at 1 ms. So each step adds the difference between these forces at the old speed and at the speed
extrapolated to the position's time, both from Bullet's own inverse dynamics (measured: 0.07 % at 1 ms). A
step's change of speed is centred on the position's time too, so half of it belongs to the torque before.
"""

import os
import sys
import weakref
from importlib import import_module
from pathlib import Path
from typing import Any

from robots.errors import SpecError
from sim.gravity import GRAVITY

MAX_JOINT_SPEED = 1e4
"""[rad/s], so far above any real one that it never acts."""


def _pybullet() -> Any:
    """Return the module, imported without the line about its build that it writes to standard error."""
    if "pybullet" in sys.modules:
        return sys.modules["pybullet"]
    try:
        kept = os.dup(2)
    except OSError:  # a supervisor may have closed it
        return import_module("pybullet")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        return import_module("pybullet")  # it ships no types
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


class World:
    """A client, a body fixed to the ground, and the motion of its joints."""

    positions: tuple[float, ...]
    """[rad], [J]"""
    speeds: tuple[float, ...]
    """[rad/s], [J], at the same time as positions."""

    def __init__(self, asset: Path, joints: tuple[str, ...], substep: float) -> None:
        """Build the world from a URDF whose movable joints are these in order; substep in s.

        Raises SpecError where they are not.
        """
        self._bullet: Any = _pybullet()
        self._substep = substep
        self._rest = (0.0,) * len(joints)
        self._client: int = self._bullet.connect(self._bullet.DIRECT)
        self._closer = weakref.finalize(self, self._bullet.disconnect, physicsClientId=self._client)
        try:
            self._build(asset, joints)
        except BaseException:
            self.close()
            raise
        self.place(self._rest, self._rest)

    def _build(self, asset: Path, joints: tuple[str, ...]) -> None:
        bullet, client = self._bullet, self._client
        bullet.setGravity(0.0, 0.0, -GRAVITY, physicsClientId=client)
        bullet.setPhysicsEngineParameter(
            fixedTimeStep=self._substep,
            numSubSteps=0,
            deterministicOverlappingPairs=1,
            physicsClientId=client,
        )
        try:
            self._body: int = bullet.loadURDF(
                str(asset),
                useFixedBase=True,
                flags=bullet.URDF_USE_INERTIA_FROM_FILE,
                physicsClientId=client,
            )
        except bullet.error as error:
            raise SpecError(f"{asset}: PyBullet cannot load it ({error}): expected a URDF file") from error
        movable = []
        self._joints: list[int] = []
        for index in range(bullet.getNumJoints(self._body, physicsClientId=client)):
            info = bullet.getJointInfo(self._body, index, physicsClientId=client)
            if info[6] != 0.0 or info[7] != 0.0:
                raise SpecError(
                    f"{asset}: joint {info[1].decode()} has damping = {info[6]}, friction = {info[7]}: expected"
                    " neither; friction is told once, in sim.friction of the robot's file"
                )
            if info[2] != bullet.JOINT_FIXED:
                movable.append(info[1].decode())
                self._joints.append(index)
                bullet.setJointMotorControl2(
                    self._body, index, bullet.VELOCITY_CONTROL, force=0.0, physicsClientId=client
                )
            bullet.changeDynamics(
                self._body,
                index,
                linearDamping=0.0,
                angularDamping=0.0,
                maxJointVelocity=MAX_JOINT_SPEED,
                physicsClientId=client,
            )
        if tuple(movable) != joints:
            raise SpecError(f"{asset}: its movable joints are {movable}: expected {list(joints)}")
        self._start: int = bullet.saveState(physicsClientId=client)

    def place(self, positions: tuple[float, ...], speeds: tuple[float, ...]) -> None:
        """Put the joints at positions [rad] with speeds [rad/s]; nothing of earlier motion remains."""
        self._restore(positions, speeds)
        self.positions, self.speeds, self._half_old = positions, speeds, speeds
        self._torques = self._rest
        self.advance(self._rest)
        # One trial step measured the acceleration: what speed gained. The leapfrog starts half a step back.
        gained = [new - old for new, old in zip(self._half_old, speeds, strict=True)]
        self._half_old = tuple(speed - gain / 2 for speed, gain in zip(speeds, gained, strict=True))
        self._restore(positions, self._half_old)
        self.positions, self.speeds = positions, speeds

    def _restore(self, positions: tuple[float, ...], speeds: tuple[float, ...]) -> None:
        bullet, client = self._bullet, self._client
        bullet.restoreState(stateId=self._start, physicsClientId=client)
        for joint, position, speed in zip(self._joints, positions, speeds, strict=True):
            bullet.resetJointState(self._body, joint, position, speed, physicsClientId=client)

    def advance(self, torques: tuple[float, ...]) -> None:
        """Advance positions and speeds by one substep under these torques [N m] at the joints."""
        bullet, client, body, joints, rest = self._bullet, self._client, self._body, self._joints, self._rest
        half_old, positions = self._half_old, self.positions
        at_old = bullet.calculateInverseDynamics(body, positions, half_old, rest, physicsClientId=client)
        at_now = bullet.calculateInverseDynamics(body, positions, self.speeds, rest, physicsClientId=client)
        forces = [
            0.5 * (torque + before) + old - now
            for torque, before, old, now in zip(torques, self._torques, at_old, at_now, strict=True)
        ]
        bullet.setJointMotorControlArray(body, joints, bullet.TORQUE_CONTROL, forces=forces, physicsClientId=client)
        bullet.stepSimulation(physicsClientId=client)
        states = bullet.getJointStates(body, joints, physicsClientId=client)
        half_new = [state[1] for state in states]
        self.positions = tuple([state[0] for state in states])
        self.speeds = tuple([1.5 * new - 0.5 * old for new, old in zip(half_new, half_old, strict=True)])
        self._half_old = tuple(half_new)
        self._torques = torques

    def close(self) -> None:
        """Disconnect the client; a second call does nothing."""
        self._closer()
