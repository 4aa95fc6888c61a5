"""What an exported policy was trained for: names, order, units, limits and rate, carried inside its file.

A policy that meets a robot with two channels swapped, degrees for radians or half the control rate shakes it.
Deployment therefore builds the robot's own contract and asks the policy's whether it fits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from edge_sac.errors import PolicyError

SCHEMA = 1
"""Counts changes of these fields and of the acting graph's nodes: a file is read by the schema it names."""


class ObservationChannel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One observation: the network sees (value - mean) / scale. Range in `unit`, None: no bound."""

    name: str
    unit: str
    lower: float | None = None
    upper: float | None = None
    mean: float = 0.0
    scale: float = 1.0

    def __post_init__(self) -> None:
        """Raise PolicyError for a number that is not finite, a scale of zero or an empty range."""
        _finite(f"observation {self.name}", lower=self.lower, upper=self.upper, mean=self.mean, scale=self.scale)
        if self.scale <= 0:
            raise PolicyError(f"observation {self.name}: scale is {self.scale}; it must be above zero")
        _ordered(f"observation {self.name}", self.lower, self.upper)


class ActionChannel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One action and the range, in `unit`, that tanh is scaled to."""

    name: str
    unit: str
    lower: float
    upper: float

    def __post_init__(self) -> None:
        """Raise PolicyError for a range that is empty or not finite."""
        _finite(f"action {self.name}", lower=self.lower, upper=self.upper)
        _ordered(f"action {self.name}", self.lower, self.upper)


class Training(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Where the weights come from: enough to train them again."""

    steps: int
    seed: int
    version: str
    command: str


class Contract(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything a policy must agree on with what it drives, in SI units.

    `robot` is the robot's name or the environment's id. `control_hz` and `rate_tolerance` (a share of it) are
    mandatory for a robot. `limits` holds, by joint, each limit's value; `action_range`, by joint, what the lower and
    the upper end of its action mean in its SI unit; `speed_filter_time` [s] is of the filter behind observed speeds.
    `precision`, `hidden`, `weights_hash` and `training` describe the network, not the robot: a contract made from a
    robot leaves them empty and `check_fits` ignores them.
    """

    robot: str
    kind: Literal["robot", "gym"]
    observation: tuple[ObservationChannel, ...]
    action: tuple[ActionChannel, ...]
    schema: int = SCHEMA
    robot_hash: str = ""
    control_hz: float | None = None
    rate_tolerance: float | None = None
    limits: dict[str, dict[str, float]] = {}
    action_range: dict[str, tuple[float, float]] = {}
    speed_filter_time: float | None = None
    precision: str = ""
    hidden: tuple[int, ...] = ()
    weights_hash: str = ""
    training: Training | None = None

    def __post_init__(self) -> None:
        """Raise PolicyError naming the field that cannot be."""
        _supported(self.schema)
        for what, channels in (("observation", self.observation), ("action", self.action)):
            names = [channel.name for channel in channels]
            if not names:
                raise PolicyError(f"{what}: no channels; a policy needs at least 1")
            if len(set(names)) < len(names):
                raise PolicyError(f"{what}: names are not unique: {', '.join(names)}")
        for joint, values in self.limits.items():
            _finite(f"limits of {joint}", **values)
        _finite("contract", control_hz=self.control_hz, rate_tolerance=self.rate_tolerance)
        for joint, (lower, upper) in self.action_range.items():
            _finite(f"action_range of {joint}", lower=lower, upper=upper)
        if self.kind == "robot" and (self.control_hz is None or self.rate_tolerance is None):
            raise PolicyError(f"robot {self.robot}: control_hz and rate_tolerance are mandatory")
        if self.control_hz is not None and self.control_hz <= 0:
            raise PolicyError(f"control_hz is {self.control_hz}; it must be above zero")
        if self.rate_tolerance is not None and not 0 < self.rate_tolerance < 1:
            raise PolicyError(f"rate_tolerance is {self.rate_tolerance}; it must be between 0 and 1")

    def to_json(self) -> str:
        """Return the contract as JSON; `from_json` gives back an equal one."""
        return msgspec.json.encode(self).decode()

    @staticmethod
    def from_json(text: str | bytes) -> Contract:
        """Return the contract written in `text`; raises PolicyError naming the field that is wrong."""
        try:
            # A newer schema may hold keys this version does not know: say that, not "unknown field".
            _supported(msgspec.json.decode(text, type=_SchemaOnly).schema)
            return msgspec.json.decode(text, type=Contract)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise PolicyError(f"contract: {error}") from error

    def check_fits(self, other: Contract) -> None:
        """Raise PolicyError naming every field in which `other`, the robot's, differs from the policy's.

        Names, their order, units and ranges of observations and actions, limits and the robot's hash must be
        equal; the control rate may differ by `rate_tolerance` of the policy's. The normaliser is inside the
        policy and is not compared.
        """
        found = list(self._mismatches(other))
        if found:
            raise PolicyError(
                f"the policy of {self.robot} does not fit {other.robot}: {'; '.join(found)}. "
                "Use the robot file it was trained with, or train a policy for this one"
            )

    def _mismatches(self, other: Contract) -> Iterator[str]:
        yield from _differing("kind", self.kind, other.kind)
        yield from _differing("robot", self.robot, other.robot)
        yield from _differing("robot_hash", self.robot_hash[:12], other.robot_hash[:12])
        if self.robot_hash[:12] == other.robot_hash[:12]:
            yield from _differing("robot_hash", self.robot_hash, other.robot_hash)
        if self.control_hz is None or other.control_hz is None:
            yield from _differing("control_hz", self.control_hz, other.control_hz)
        else:
            allowed = self.control_hz * (self.rate_tolerance or 0.0)
            if not abs(other.control_hz - self.control_hz) <= allowed:
                yield (f"control_hz: policy {self.control_hz:g} (within {allowed:g}), robot {other.control_hz:g}")
        yield from _channel_mismatches("observation", self.observation, other.observation)
        yield from _channel_mismatches("action", self.action, other.action)
        yield from _differing("speed_filter_time", self.speed_filter_time, other.speed_filter_time)
        yield from _differing("action_range", self.action_range, other.action_range)
        for joint in sorted(self.limits.keys() | other.limits.keys()):
            mine, theirs = self.limits.get(joint, {}), other.limits.get(joint, {})
            for limit in sorted(mine.keys() | theirs.keys()):
                yield from _differing(f"limits.{joint}.{limit}", mine.get(limit), theirs.get(limit))


class _SchemaOnly(msgspec.Struct):
    schema: int


def _supported(schema: int) -> None:
    if schema != SCHEMA:
        raise PolicyError(f"contract: schema is {schema}, this version reads {SCHEMA}: install a newer edge-sac")


def _finite(what: str, **values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not math.isfinite(value):
            raise PolicyError(f"{what}: {name} is {value}; it must be finite")


def _ordered(what: str, lower: float | None, upper: float | None) -> None:
    if lower is not None and upper is not None and not lower < upper:
        raise PolicyError(f"{what}: lower {lower:g} is not below upper {upper:g}")


def _differing(field: str, policy: Any, robot: Any) -> Iterator[str]:
    if policy != robot:
        yield f"{field}: policy {policy!r}, robot {robot!r}"


def _channel_mismatches(
    what: str,
    policy: Sequence[ObservationChannel] | Sequence[ActionChannel],
    robot: Sequence[ObservationChannel] | Sequence[ActionChannel],
) -> Iterator[str]:
    """Yield names or order once for the whole list, then units and ranges of the channels both have."""
    mine, theirs = [channel.name for channel in policy], [channel.name for channel in robot]
    if mine != theirs:
        kind = "order" if sorted(mine) == sorted(theirs) else "names"
        yield f"{what} {kind}: policy {', '.join(mine)}, robot {', '.join(theirs)}"
    found = {channel.name: channel for channel in robot}
    for channel in policy:
        if channel.name in found:
            for field in ("unit", "lower", "upper"):
                yield from _differing(
                    f"{what}.{channel.name}.{field}",
                    getattr(channel, field),
                    getattr(found[channel.name], field),
                )
