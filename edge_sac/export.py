"""Writing a policy to a file: held against float64 first, and in place of an older file only once whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import onnx.checker
from numpy.typing import NDArray

from edge_sac.atomic import write_file
from edge_sac.contract import Contract
from edge_sac.errors import NonFinite, PolicyError
from edge_sac.policy import Policy
from edge_sac.policy_file import CONTRACT_KEY, GOLDEN_COUNT, GOLDEN_KEY, Golden, normaliser_mismatch
from edge_sac.policy_graph import build_graph, freeze
from edge_sac.policy_reference import action_tolerance, reference_action
from edge_sac.policy_session import PolicySession
from edge_sac.policy_weights import Vector, Weights, bad_value, check_shapes, weight_shapes, weights_hash

RANDOM_COUNT = 256
RECORDED_COUNT = 4096
"""More recorded observations than this are thinned evenly: parity stays a matter of a second."""
FAR = 10.0
"""Where a channel has no bound, its boundary is this many scales from its mean."""


def export_policy(path: Path | str, weights: Weights, contract: Contract, observations: NDArray[Any]) -> None:
    """Write the policy to `path`, its contract and 32 golden vectors inside, or refuse and write nothing.

    `weights` are float32 as `weight_shapes`; `observations` [N, O] are recorded ones. The contract's empty
    weights_hash is filled in. Raises PolicyError, leaving an older file as it was, when weights, contract and
    observations do not belong together, when a number is not finite, or when the frozen graph is not at
    parity.

    Parity: on the recorded observations, 256 random ones and the channels' boundaries, each without noise and
    with it, every action must be within `action_tolerance` of the float64 reference (its factor and what was
    measured: there). The file is written beside `path`, synced, loaded back as a user would, and only then
    renamed.
    """
    path = Path(path)
    observations = np.asarray(observations)
    wide, driven = len(contract.observation), len(contract.action)
    check_shapes(weights, weight_shapes(wide, driven, contract.hidden))
    problem = bad_value(weights) or normaliser_mismatch(contract, weights)
    if problem is not None:
        raise PolicyError(f"{path} not written: {problem}")
    found = weights_hash(weights)
    if contract.weights_hash not in ("", found):
        raise PolicyError(
            f"{path} not written: weights hash to {found[:12]}, the contract says "
            f"{contract.weights_hash[:12]}: give the contract made for these weights"
        )
    recorded = _recorded(path, observations, contract)
    model = freeze(build_graph(wide, driven, contract.hidden), weights)
    # Here, once; a process that acts compares nodes instead, since the checker's schemas take 7 MiB.
    onnx.checker.check_model(model, full_check=True)
    session = PolicySession(model.SerializeToString(), wide, driven, {}, [c.name for c in contract.observation])
    rng = np.random.default_rng(0)
    probes = np.concatenate([recorded, _random(contract, rng), _boundaries(contract)])
    _check_parity(path, session, weights, contract, probes, rng)
    golden = _golden(session, recorded, _random(contract, rng), driven, rng)
    for key, value in (
        (CONTRACT_KEY, msgspec.structs.replace(contract, weights_hash=found).to_json()),
        (GOLDEN_KEY, msgspec.json.encode(golden).decode()),
    ):
        model.metadata_props.add(key=key, value=value)
    _replace(path, model.SerializeToString())


def _recorded(path: Path, observations: NDArray[Any], contract: Contract) -> Vector:
    """Return at most RECORDED_COUNT of the observations as float32 [N, O], spread over all of them."""
    wide = len(contract.observation)
    if observations.ndim != 2 or observations.shape[1] != wide or len(observations) == 0:
        raise PolicyError(
            f"{path} not written: observations have shape {list(observations.shape)}; "
            f"expected [N, {wide}] with N at least 1"
        )
    count = min(len(observations), RECORDED_COUNT)
    with np.errstate(over="ignore"):
        kept: Vector = observations[np.linspace(0, len(observations) - 1, count).astype(int)].astype(np.float32)
    bad = np.argwhere(~np.isfinite(kept))
    if len(bad):
        row, column = (int(i) for i in bad[0])
        raise PolicyError(
            f"{path} not written: a recorded observation of {contract.observation[column].name} "
            f"is {kept[row, column]}; give finite ones"
        )
    return kept


def _random(contract: Contract, rng: np.random.Generator) -> Vector:
    """Return RANDOM_COUNT observations spread as the normaliser says, [RANDOM_COUNT, O]."""
    mean = np.array([c.mean for c in contract.observation])
    scale = np.array([c.scale for c in contract.observation])
    return (mean + scale * rng.standard_normal((RANDOM_COUNT, len(mean)))).astype(np.float32)


def _boundaries(contract: Contract) -> Vector:
    """Return [2 O + 4, O]: all channels at an end, at the mean, at zero, and each alone at either end."""
    mean = np.array([c.mean for c in contract.observation])
    lower = np.array([c.mean - FAR * c.scale if c.lower is None else c.lower for c in contract.observation])
    upper = np.array([c.mean + FAR * c.scale if c.upper is None else c.upper for c in contract.observation])
    rows = [lower, upper, mean, np.zeros_like(mean)]
    for end in (lower, upper):
        rows += [np.where(np.arange(len(mean)) == i, end, mean) for i in range(len(mean))]
    return np.array(rows).astype(np.float32)


def _check_parity(
    path: Path,
    session: PolicySession,
    weights: Weights,
    contract: Contract,
    obs: Vector,  # [N, O]
    rng: np.random.Generator,
) -> None:
    """Raise PolicyError naming the worst action when float32 does not explain its distance to float64."""
    shape = (len(obs), len(contract.action))
    for noise in (np.zeros(shape, np.float32), rng.standard_normal(shape).astype(np.float32)):
        try:
            got = np.array([session.step(one, draw) for one, draw in zip(obs, noise, strict=True)])
        except NonFinite as error:
            raise PolicyError(f"{path} not written: {error}") from error
        error_size = np.abs(got - reference_action(weights, obs, noise))
        ratio = error_size / action_tolerance(weights, obs, noise)
        if not np.all(ratio <= 1.0):
            i, j = (int(k) for k in np.unravel_index(np.argmax(ratio), shape))
            raise PolicyError(
                f"{path} not written: action {contract.action[j].name} is {error_size[i, j]:.3g} from its "
                f"float64 reference, {ratio[i, j]:.3g} times what float32 allows: ONNX Runtime computes this "
                "network wrongly here; run edge-sac doctor"
            )


def _golden(
    session: PolicySession, recorded: Vector, drawn: Vector, action_dim: int, rng: np.random.Generator
) -> Golden:
    """Return GOLDEN_COUNT steps: recorded observations, then drawn ones, every second without noise."""
    few = recorded[np.linspace(0, len(recorded) - 1, min(len(recorded), GOLDEN_COUNT // 2)).astype(int)]
    obs = np.concatenate([few, drawn])[:GOLDEN_COUNT]
    noise = rng.standard_normal((GOLDEN_COUNT, action_dim)).astype(np.float32)
    noise[::2] = 0.0
    action = np.array([session.step(one, draw) for one, draw in zip(obs, noise, strict=True)])
    return Golden.pack(obs, noise, action)


def _replace(path: Path, data: bytes) -> None:
    """Put `data` at `path` in one step, durable and loaded back before the old file goes."""
    if not path.parent.is_dir() or path.is_dir():
        raise PolicyError(f"{path} not written: give a file name in a folder that exists")
    try:
        write_file(path, data, check=Policy.load)
    except PolicyError as error:
        raise PolicyError(f"{path} not written, it does not read back: {error}") from error
    except OSError as error:
        raise PolicyError(f"{path} not written: {error.strerror}; give a writable folder with space") from error
