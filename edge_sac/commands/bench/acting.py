"""Our acting policies as candidates: the live one, an exported one, and the same network in NumPy. No torch."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edge_sac.commands.bench.candidate import Candidate, Stages, Work
from edge_sac.contract import ActionChannel, Contract, ObservationChannel
from edge_sac.policy_weights import Vector, Weights, weight_shapes

KINDS = ("ActingPolicy", "exported", "numpy")


def random_weights(work: Work) -> dict[str, Vector]:
    """Return weights of the size a trained policy's have."""
    rng = np.random.default_rng(0)
    weights = {
        name: (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        for name, shape in weight_shapes(work.obs, work.action, work.hidden).items()
    }
    plain = {"obs_mean": 0.0, "obs_scale": 1.0, "action_offset": 0.0, "action_scale": 1.0}
    return weights | {name: np.full_like(weights[name], value) for name, value in plain.items()}


def contract(work: Work) -> Contract:
    """Return the contract of an environment without units."""
    return Contract(
        robot="bench",
        kind="gym",
        observation=tuple(ObservationChannel(name=f"obs[{i}]", unit="1") for i in range(work.obs)),
        action=tuple(ActionChannel(name=f"action[{i}]", unit="1", lower=-1.0, upper=1.0) for i in range(work.action)),
        precision="fp32",
        hidden=work.hidden,
    )


def numpy_policy(weights: Weights) -> Callable[[Vector], Vector]:
    """Return the deterministic policy as anyone would write it: float32, one product a layer, nothing checked."""
    layers = sum(name.startswith("w") for name in weights)
    mean, scale = weights["obs_mean"], weights["obs_scale"]
    offset, factor = weights["action_offset"], weights["action_scale"]
    pairs = [(weights[f"w{layer}"], weights[f"b{layer}"]) for layer in range(layers)]
    actions = len(offset)
    last_w, last_b = pairs[-1]
    # The second half of the last layer is of the standard deviation, which a deterministic policy has no use for.
    last_w, last_b = np.ascontiguousarray(last_w[:, :actions]), last_b[:actions]

    def act(obs: Vector) -> Vector:
        x = (obs - mean) / scale
        for weight, bias in pairs[:-1]:
            x = np.maximum(x @ weight + bias, np.float32(0))
        action: Vector = offset + factor * np.tanh(x @ last_w + last_b)
        return action

    return act


def build(work: Work) -> Candidate:
    """Return one kind of policy, acting on a new observation each time."""
    stages = Stages()
    if work.variant == "numpy":
        act = numpy_policy(random_weights(work))
    else:
        from edge_sac.policy import ActingPolicy, Policy

        if work.variant == "exported":
            act = Policy.load(work.path).act
        else:
            live = ActingPolicy(work.obs, work.action, work.hidden)
            live.publish(random_weights(work))
            act = live.act
    observations = np.random.default_rng(1).standard_normal((1024, work.obs), dtype=np.float32)
    turn = 0

    def one() -> None:
        nonlocal turn
        turn = (turn + 1) % len(observations)
        act(observations[turn])

    for _ in range(200):
        one()
    stages.passed("acting")
    return Candidate({"act": one}, {"stages": stages.resident, "versions": {"numpy": np.__version__}})
