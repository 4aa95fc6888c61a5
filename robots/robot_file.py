"""A robot's description, read from its TOML file and checked before any of it is believed.

The hard idea: a limit that is missing, NaN or infinite would switch a clamp off in silence, so every number in the
file must be finite, and every limit there.
"""

import re
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from robots.errors import SpecError
from robots.spec import FreeJoint, PositionJoint, Range, RobotSpec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

LARGEST = 3.4028234e38
"""Of float32, in which limits are used: what overflows there would be no limit."""


def known_robots() -> tuple[str, ...]:
    """Return the names of the robots shipped with this package, sorted."""
    names = (entry.name for entry in resources.files("robots").iterdir())
    return tuple(sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml")))


def load_robot(name_or_path: str | Path) -> RobotSpec:
    """Return the checked description of a shipped robot by name, or of the TOML file at a path.

    Raises SpecError naming file, key, value and what was expected.
    """
    text = str(name_or_path)
    if text.endswith(".toml") or "/" in text or "\\" in text:
        path = Path(text)
        if not path.is_file():
            raise SpecError(f"{path}: no such robot file; give the path of a TOML file or one of: {_names()}")
        return parse_robot(path.read_bytes(), str(path))
    if text not in known_robots():
        raise SpecError(f"unknown robot {text!r}; known are: {_names()} (or give the path of a .toml file)")
    return parse_robot(resources.files("robots").joinpath(f"{text}.toml").read_bytes(), f"{text}.toml")


def parse_robot(data: bytes, file: str) -> RobotSpec:
    """Return the checked description in data; file is its name in messages. Raises SpecError."""
    try:
        raw = tomllib.loads(data.decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SpecError(f"{file}: not a TOML file: {error}") from error
    for key, value in _numbers("", raw):
        if not abs(value) <= LARGEST:
            raise SpecError(f"{file}: {key} = {value}: expected a finite number in float32; write the real limit")
    try:
        spec = msgspec.convert(raw, RobotSpec)
    except msgspec.ValidationError as error:
        raise SpecError(f"{file}: {_explain(str(error), raw)}") from error
    _check(spec, file)
    return spec


def _names() -> str:
    return ", ".join(known_robots())


def _numbers(key: str, value: object) -> Iterator[tuple[str, float]]:
    """Yield every number below value with its key."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _numbers(f"{key}.{name}" if key else str(name), item)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _numbers(f"{key}[{index}]", item)
    elif isinstance(value, int | float):
        yield key, float(value) if isinstance(value, float) or abs(value) <= LARGEST else float("inf")


def _explain(message: str, raw: object) -> str:
    """Return msgspec's message with the key written as in the file, and the value found there."""
    what, _, place = message.partition(" - at ")
    key = place.strip("`").removeprefix("$").removeprefix(".")
    if not key:
        return what
    found: Any = raw
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", key):
        try:
            found = found[int(index)] if index else found[name]
        except (KeyError, IndexError, TypeError):
            return f"{key}: {what}"
    shown = "" if isinstance(found, dict) else f" = {found!r}"
    return f"{key}{shown}: {what}"


def _check(spec: RobotSpec, file: str) -> None:
    """Raise SpecError for a value of the right type that no robot can have."""

    def refuse(key: str, value: object, expected: str) -> None:
        raise SpecError(f"{file}: {key} = {value}: expected {expected}")

    def positive(key: str, value: float) -> None:
        if not value > 0:
            refuse(key, value, "a number above 0")

    def ordered(key: str, value: Range) -> None:
        if not value[0] < value[1]:
            refuse(key, list(value), "[lower, upper] with lower < upper")

    for key in ("control_hz", "command_valid", "stop_time"):
        positive(key, getattr(spec, key))
    if not 0 < spec.rate_tolerance < 1:
        refuse("rate_tolerance", spec.rate_tolerance, "a share between 0 and 1")
    names = [joint.name for joint in spec.joint]
    if not names or len(set(names)) != len(names):
        refuse("joint", names, "at least one joint, each with its own name")
    if not spec.actuated:
        refuse("joint", names, 'at least one joint with actuator = "torque" or "position"')
    if spec.command_valid < spec.dt:
        refuse("command_valid", spec.command_valid, f"at least one control period, {spec.dt:g} s")
    for index, joint in enumerate(spec.joint):
        if joint.sign != 1 or joint.zero != 0:
            refuse(
                f"joint[{index}]", f"sign {joint.sign}, zero {joint.zero}", "sign 1 and zero 0: a twin needs no other"
            )
        ordered(f"joint[{index}].position", joint.position)
        positive(f"joint[{index}].speed", joint.speed)
        if not isinstance(joint, FreeJoint):
            positive(f"joint[{index}].torque", joint.torque)
        if isinstance(joint, PositionJoint):
            positive(f"joint[{index}].gains[0]", joint.gains[0])
            positive(f"joint[{index}].gains[1]", joint.gains[1])
    _check_observation_and_action(spec, names, refuse, positive, ordered)
    _check_twin_and_task(spec, names, refuse, positive)


def _check_observation_and_action(spec: RobotSpec, names: list[str], refuse: Any, positive: Any, ordered: Any) -> None:
    """Raise SpecError where observation or action name what the joints do not have."""
    positive("observation.speed_filter_time", spec.observation.speed_filter_time)
    channels = [channel.name for channel in spec.observation.channels]
    if not channels or len(set(channels)) != len(channels):
        refuse("observation.channels", channels, "at least one channel, each with its own name")
    driven = [joint.name for joint in spec.actuated]
    for index, channel in enumerate(spec.observation.channels):
        allowed = driven if channel.signal == "previous_action" else names
        if channel.joint not in allowed:
            refuse(f"observation.channels[{index}].joint", repr(channel.joint), f"one of {allowed}")
        positive(f"observation.channels[{index}].scale", channel.scale)
    if len(spec.action.range) != len(spec.actuated):
        refuse("action.range", len(spec.action.range), f"one [lower, upper] for each of {driven}")
    for index, (joint, bounds) in enumerate(zip(spec.actuated, spec.action.range, strict=True)):
        ordered(f"action.range[{index}]", bounds)
        limit = joint.position if isinstance(joint, PositionJoint) else (-joint.torque, joint.torque)
        if bounds[0] < limit[0] or bounds[1] > limit[1]:
            refuse(f"action.range[{index}]", list(bounds), f"a range inside the joint's limits {list(limit)}")
    for key, ranges in (("position", spec.reset.position), ("speed", spec.reset.speed)):
        if len(ranges) != len(spec.joint):
            refuse(f"reset.{key}", len(ranges), f"one [lower, upper] for each of {names}")
        for index, bounds in enumerate(ranges):
            if (
                key == "position"
                and not spec.joint[index].position[0] < bounds[0] <= bounds[1] < spec.joint[index].position[1]
            ):
                refuse(f"reset.position[{index}]", list(bounds), "a range inside the joint's own")
            if bounds[0] > bounds[1]:
                refuse(f"reset.{key}[{index}]", list(bounds), "[lower, upper] with lower <= upper")


def _check_twin_and_task(spec: RobotSpec, names: list[str], refuse: Any, positive: Any) -> None:
    """Raise SpecError where the twin or the task is impossible."""
    positive("sim.substep", spec.sim.substep)
    positive("sim.encoder_counts", spec.sim.encoder_counts)
    for key in ("supply_voltage", "resistance", "torque_constant"):
        positive(f"sim.motor.{key}", getattr(spec.sim.motor, key))
    if set(spec.sim.friction) != set(names):
        refuse("sim.friction", sorted(spec.sim.friction), f"one table for each of {names}")
    for name, friction in spec.sim.friction.items():
        for key in ("coulomb", "viscous"):
            value = getattr(friction, key)
            if value < 0:
                refuse(f"sim.friction.{name}.{key}", value, "a number of at least 0")
    if spec.link.url:
        refuse("link.url", repr(spec.link.url), "nothing yet: only the twin can be driven")
    if spec.randomize:
        refuse("randomize", sorted(spec.randomize), "nothing yet: the twin is not randomised")
    positive("task.goal_tolerance", spec.task.goal_tolerance)
    for key in ("episode_time", "judged_time"):
        if round(getattr(spec.task, key) * spec.control_hz) < 1:
            refuse(f"task.{key}", getattr(spec.task, key), f"at least one control period, {spec.dt:g} s")
    if spec.task.judged_time > spec.task.episode_time:
        refuse("task.judged_time", spec.task.judged_time, f"at most episode_time = {spec.task.episode_time}")
    if not 0 < spec.task.success_share <= 1:
        refuse("task.success_share", spec.task.success_share, "a share above 0, at most 1")
