"""What is inside an exported policy file, read back and verified.

The file is an ONNX model any runtime takes; contract and golden vectors ride along as metadata. Nothing in
the file is believed: operators, shapes, numbers and the hash are checked before the runtime sees it.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import numpy_helper

from edge_sac.contract import Contract
from edge_sac.errors import PolicyError
from edge_sac.policy_graph import OPERATORS, build_graph, frozen_weights
from edge_sac.policy_reference import UNIT_ROUNDOFF, action_tolerance
from edge_sac.policy_session import PolicySession
from edge_sac.policy_weights import Vector, Weights, bad_value, check_shapes, weight_shapes, weights_hash

CONTRACT_KEY = "edge_sac.contract"
GOLDEN_KEY = "edge_sac.golden"
GOLDEN_COUNT = 32
FIRST_BYTE = b"\x08"
"""An ONNX file begins with field 1, ir_version, as a varint."""


class Golden(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Steps the exporter ran, as base64 of little-endian float32 [count, O], [count, A] and [count, A]."""

    count: int
    obs: str
    noise: str
    action: str

    @staticmethod
    def pack(obs: Vector, noise: Vector, action: Vector) -> Golden:
        """Return the vectors as text for the metadata."""
        return Golden(len(obs), *(base64.b64encode(v.astype("<f4").tobytes()).decode() for v in (obs, noise, action)))

    def unpack(self, obs_dim: int, action_dim: int) -> tuple[Vector, Vector, Vector]:
        """Return obs [count, O], noise and action [count, A]; raises PolicyError when sizes differ."""
        return (
            self._decode("obs", self.obs, obs_dim),
            self._decode("noise", self.noise, action_dim),
            self._decode("action", self.action, action_dim),
        )

    def _decode(self, name: str, text: str, width: int) -> Vector:
        try:
            data = base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise PolicyError(f"golden vectors: {name} is not base64: {error}") from error
        if len(data) != 4 * self.count * width:
            raise PolicyError(
                f"golden vectors: {name} holds {len(data)} bytes; {self.count} of width {width} are "
                f"{4 * self.count * width}"
            )
        values = np.frombuffer(data, "<f4").reshape(self.count, width).astype(np.float32)
        if not np.isfinite(values).all():
            raise PolicyError(f"golden vectors: {name} holds a value that is not finite")
        return values


@dataclass(frozen=True)
class PolicyContent:
    """A verified file: the model's bytes and what was found in them."""

    model: bytes
    contract: Contract
    weights: Weights
    golden: Golden


def read_policy(path: Path) -> PolicyContent:
    """Return what the file holds; raises PolicyError with what is wrong, without the file's name."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PolicyError(f"cannot be read: {error.strerror}") from error
    model = _parse(data)
    metadata = {entry.key: entry.value for entry in model.metadata_props}
    for key in (CONTRACT_KEY, GOLDEN_KEY):
        if key not in metadata:
            raise PolicyError(
                f"has no {key} metadata, so what it was trained for is unknown: only files written by "
                "edge-sac export can be run"
            )
    contract = Contract.from_json(metadata[CONTRACT_KEY])
    try:
        golden = msgspec.json.decode(metadata[GOLDEN_KEY], type=Golden)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise PolicyError(f"golden vectors: {error}") from error
    if golden.count != GOLDEN_COUNT:
        raise PolicyError(f"golden vectors: {golden.count} found, expected {GOLDEN_COUNT}")
    _check_graph(model, contract)
    shapes = weight_shapes(len(contract.observation), len(contract.action), contract.hidden)
    weights = frozen_weights(model, shapes)
    check_shapes(weights, shapes)
    _check_nodes(model, build_graph(len(contract.observation), len(contract.action), contract.hidden))
    problem = bad_value(weights) or normaliser_mismatch(contract, weights)
    if problem is not None:
        raise PolicyError(f"{problem}; export the policy again")
    found = weights_hash(weights)
    if found != contract.weights_hash:
        raise PolicyError(
            f"weights hash to {found[:12]}, the contract says {contract.weights_hash[:12] or 'nothing'}: "
            "the file was changed after it was written; export the policy again"
        )
    return PolicyContent(data, contract, weights, golden)


def normaliser_mismatch(contract: Contract, weights: Weights) -> str | None:
    """Return how normaliser or action range in the contract differ from the weights', or None.

    Mean and scale must be equal as float32. An action's range may differ by the rounding of its middle and
    half.
    """
    for i, seen in enumerate(contract.observation):
        for field, name in (("mean", "obs_mean"), ("scale", "obs_scale")):
            value = getattr(seen, field)
            if np.float32(value) != weights[name][i]:
                return f"observation {seen.name}: {field} is {value} in the contract, {name} holds {weights[name][i]}"
    for i, driven in enumerate(contract.action):
        middle, half = float(weights["action_offset"][i]), float(weights["action_scale"][i])
        slack = 4.0 * UNIT_ROUNDOFF * (abs(driven.lower) + abs(driven.upper))
        if abs(middle - half - driven.lower) > slack or abs(middle + half - driven.upper) > slack:
            return (
                f"action {driven.name}: range is {driven.lower:g} to {driven.upper:g} in the contract, "
                f"{middle - half:g} to {middle + half:g} in the weights"
            )
    return None


def golden_mismatch(content: PolicyContent, session: PolicySession) -> str | None:
    """Return which golden vector the session does not reproduce, or None.

    Bits may differ between processors: twice the float32 tolerance is allowed, one for each run.
    """
    contract = content.contract
    obs, noise, wanted = content.golden.unpack(len(contract.observation), len(contract.action))
    allowed = 2.0 * action_tolerance(content.weights, obs, noise)
    for i in range(len(obs)):
        got = session.step(obs[i], noise[i])
        error = np.abs(got - wanted[i])
        if not np.all(error <= allowed[i]):
            j = int(np.argmax(error - allowed[i]))
            return (
                f"golden vector {i} does not reproduce: action {contract.action[j].name} is {got[j]:.7g}, "
                f"the file says {wanted[i, j]:.7g} (within {allowed[i, j]:.1g})"
            )
    return None


def _parse(data: bytes) -> onnx.ModelProto:
    """Return the model in `data`, or raise PolicyError telling a foreign file from a damaged one."""
    if not data:
        raise PolicyError("is empty: copy or export it again")
    if not data.startswith(FIRST_BYTE):
        raise PolicyError("is not an ONNX file: give the policy.onnx that edge-sac export wrote")
    damaged = f"is truncated or damaged ({len(data)} bytes): copy or export it again"
    try:
        model = onnx.load_model_from_string(data)
    except DecodeError as error:
        raise PolicyError(damaged) from error
    if not model.graph.node or not model.opset_import:
        raise PolicyError(damaged)
    return model


def _check_nodes(model: onnx.ModelProto, expected: onnx.ModelProto) -> None:
    """Raise PolicyError unless every node and constant is the one this schema of the contract stands for.

    The checker does not see a rewired node in every version, and golden vectors alone need not reach it.
    """
    found = list(model.graph.node)
    for index, node in enumerate(expected.graph.node):
        if index >= len(found) or found[index] != node:
            raise PolicyError(f"node {index} is not the {node.name} of a policy: export the policy again")
    if len(found) > len(expected.graph.node):
        raise PolicyError(f"has {len(found)} nodes, a policy of this shape {len(expected.graph.node)}")
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for tensor in expected.graph.initializer:
        value = numpy_helper.to_array(tensor)
        if tensor.name not in constants or not np.array_equal(constants[tensor.name], value):
            raise PolicyError(f"{tensor.name} is not {value}: export the policy again")


def _check_graph(model: onnx.ModelProto, contract: Contract) -> None:
    """Raise PolicyError unless operators, inputs, output and the default noise are a policy's."""
    unknown = sorted(
        {f"{n.domain}.{n.op_type}".lstrip(".") for n in model.graph.node if n.domain or n.op_type not in OPERATORS}
    )
    if unknown or model.functions:
        raise PolicyError(
            f"holds unknown operators: {', '.join(unknown) or 'functions of its own'}; a policy is made of "
            f"{', '.join(sorted(OPERATORS))}"
        )
    if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in model.graph.initializer):
        raise PolicyError("keeps weights in another file; a policy is one file: export it again")
    wide, driven = len(contract.observation), len(contract.action)
    found = [(v.name, [d.dim_value for d in v.type.tensor_type.shape.dim]) for v in model.graph.input]
    if found != [("obs", [1, wide]), ("noise", [1, driven])]:
        raise PolicyError(f"inputs are {found}; the contract asks for obs [1, {wide}] and noise [1, {driven}]")
    found = [(v.name, [d.dim_value for d in v.type.tensor_type.shape.dim]) for v in model.graph.output]
    if found != [("action", [1, driven])]:
        raise PolicyError(f"outputs are {found}; the contract asks for action [1, {driven}]")
    noise = [numpy_helper.to_array(t) for t in model.graph.initializer if t.name == "noise"]
    if len(noise) != 1 or np.any(noise[0]):
        raise PolicyError("noise has no default of zeros, so obs alone would not act deterministically")
