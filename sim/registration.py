"""Environments by name, with the physics that is installed; light enough to import anywhere.

Importing this module registers them: gymnasium.make("sim.registration:edge_sac/Furuta-v0"), or
"sim.registration:dmc/cartpole-swingup" of the DeepMind Control Suite.
"""

import hashlib
import sys
from importlib import util
from pathlib import Path
from typing import Any, Literal, TypeAlias

import gymnasium
import msgspec

from robots.env import RobotEnv
from robots.errors import SpecError
from robots.robot_file import load_robot
from robots.spec import RobotSpec
from robots.tasks import make_task

Physics: TypeAlias = Literal["pybullet", "equations"]
CHOICES = ("auto", "pybullet", "equations")
DMC = "dmc/"
DMC_TASKS = (
    "ball_in_cup-catch",
    "cartpole-swingup",
    "cheetah-run",
    "finger-spin",
    "reacher-easy",
    "walker-walk",
)
"""Of the suite, those that state-based agents are compared on; their episodes have 1,000 steps."""
ASSETS = Path(__file__).parent / "assets"


def physics_available() -> dict[str, str]:
    """Return each kind of a twin's physics with "ok", or the line that installs what it lacks; imports nothing."""
    return {"equations": "ok", "pybullet": _installed("pybullet", "sim")}


def suite_available() -> str:
    """Return "ok" where the DeepMind Control Suite is installed, or the line that installs it; imports nothing."""
    found = _installed("dm_control", "dmc")
    beyond = found != "ok" and sys.version_info >= (3, 13)
    return f"{found} under Python 3.10 to 3.12: it has no wheels beyond" if beyond else found


def _installed(module: str, extra: str) -> str:
    return "ok" if util.find_spec(module) is not None else f"pip install 'edge-sac[{extra}]'"


def resolve_physics(physics: str) -> Physics:
    """Return the physics that a choice means here: auto is pybullet where installed, else the equations.

    Raises SpecError for an unknown choice, or for pybullet where it is missing.
    """
    if physics not in CHOICES:
        raise SpecError(f"physics = {physics!r}: expected one of {', '.join(CHOICES)}")
    remedy = physics_available()["pybullet"]
    if physics == "pybullet" and remedy != "ok":
        raise SpecError(f"physics = 'pybullet': PyBullet is not installed; {remedy}, or use physics equations")
    return "pybullet" if physics != "equations" and remedy == "ok" else "equations"


def make_env(robot: str, physics: str = "auto") -> RobotEnv:
    """Return the environment of a robot's twin, by the robot's name or the path of its TOML file.

    Raises SpecError for an unknown robot, model, asset or physics.
    """
    spec = load_robot(robot)
    kind = resolve_physics(physics)
    if spec.sim.model != "furuta":
        raise SpecError(f"{spec.name}: sim.model = {spec.sim.model!r}: expected 'furuta', the one model there is")
    asset = _asset(spec, robot)
    task = make_task(spec)
    if kind == "equations":
        from sim.equations_robot import EquationsRobot

        return RobotEnv(EquationsRobot(spec, asset), task)
    from sim.pybullet_robot import PyBulletRobot

    return RobotEnv(PyBulletRobot(spec, asset), task)


def twin_hash(robot: str) -> str:
    """Return a hash of all that makes a robot's twin and task: its description and its asset. Raises SpecError."""
    spec = load_robot(robot)
    described = msgspec.json.encode(spec, order="sorted")
    return hashlib.sha256(described + _asset(spec, robot).read_bytes()).hexdigest()


def register() -> None:
    """Register the environments with Gymnasium; a second call does nothing."""
    if "edge_sac/Furuta-v0" not in gymnasium.registry:
        gymnasium.register(id="edge_sac/Furuta-v0", entry_point=furuta)
    for task in DMC_TASKS:
        if DMC + task not in gymnasium.registry:
            gymnasium.register(id=DMC + task, entry_point="sim.dmc:DmcEnv", kwargs={"name": task})


def furuta(**settings: Any) -> RobotEnv:
    """Return the Furuta pendulum's environment; the entry point of edge_sac/Furuta-v0."""
    settings.pop("render_mode", None)
    return make_env("furuta", **settings)


def _asset(spec: RobotSpec, robot: str) -> Path:
    """Return the URDF beside the robot's own file, or the one shipped here."""
    places = [Path(robot).parent / spec.sim.asset] if robot.endswith(".toml") else []
    places.append(ASSETS / spec.sim.asset)
    for place in places:
        if place.is_file():
            return place
    raise SpecError(f"{spec.name}: sim.asset = {spec.sim.asset!r}: expected a URDF at {' or '.join(map(str, places))}")


register()
