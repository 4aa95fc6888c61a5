"""A small policy with every kind of asymmetry: two actions of unlike ranges, a normaliser that matters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_sac.contract import ActionChannel, Contract, ObservationChannel, Training
from edge_sac.policy_weights import weight_shapes


@dataclass(frozen=True)
class PolicyCase:
    """Weights, the contract that belongs to them and observations like those it was trained on."""

    weights: dict[str, NDArray[np.float32]]
    contract: Contract
    observations: NDArray[np.float32]
    noise: NDArray[np.float32]


def make_policy_case(seed: int, hidden: tuple[int, ...]) -> PolicyCase:
    rng = np.random.default_rng(seed)
    observation = (
        ObservationChannel(name="arm_angle", unit="rad", lower=-2.0, upper=2.0, mean=0.25, scale=0.5),
        ObservationChannel(name="arm_speed", unit="rad/s", lower=-30.0, upper=30.0, mean=-1.0, scale=8.0),
        ObservationChannel(name="pendulum_speed", unit="rad/s", mean=0.0, scale=10.0),
    )
    action = (
        ActionChannel(name="arm", unit="N m", lower=-0.25, upper=0.25),
        ActionChannel(name="valve", unit="1", lower=0.5, upper=2.0),
    )
    shapes = weight_shapes(len(observation), len(action), hidden)
    weights = {
        name: (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32) for name, shape in shapes.items()
    }
    weights["obs_mean"] = np.array([c.mean for c in observation], np.float32)
    weights["obs_scale"] = np.array([c.scale for c in observation], np.float32)
    weights["action_offset"] = np.array([0.0, 1.25], np.float32)
    weights["action_scale"] = np.array([0.25, 0.75], np.float32)
    contract = Contract(
        robot="furuta",
        kind="robot",
        robot_hash="ab" * 32,
        control_hz=50.0,
        rate_tolerance=0.1,
        observation=observation,
        action=action,
        limits={"arm": {"torque": 0.25, "speed": 30.0}},
        precision="fp16",
        hidden=hidden,
        training=Training(steps=1000, seed=seed, version="0.1.0", command="edge-sac train furuta"),
    )
    drawn = rng.standard_normal((100, len(observation)))
    return PolicyCase(
        weights,
        contract,
        (weights["obs_mean"] + weights["obs_scale"] * drawn).astype(np.float32),
        rng.standard_normal((100, len(action))).astype(np.float32),
    )


@pytest.fixture
def policy_case() -> PolicyCase:
    return make_policy_case(0, (32, 16))


@pytest.fixture
def other_policy_case() -> PolicyCase:
    return make_policy_case(1, (32, 16))
