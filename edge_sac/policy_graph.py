"""The one ONNX graph a policy acts by, in training and after export.

While training, the weights are inputs of the graph, so a new policy is a matter of writing into bound
buffers; freezing keeps the same nodes and turns the weights into initialisers. Nothing is traced: every node
is written here. The hard idea is that both forms must compute the same bits, so no step may depend on whether
a weight is a constant: the log standard deviation's bounds, for one, are folded by hand and not by the
runtime.

OPSET and IR are what ONNX Runtime 1.17 (the oldest in use on JetPack 6) reads: it was built against ONNX
1.15, so it accepts opsets up to 20 and IR up to 9. Opset 17 came with IR 8 and has every operator needed
here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import edge_sac
from edge_sac.policy_weights import Weights, check_shapes, weight_shapes

OPSET = 17
IR = 8
LOG_STD_SLOPE = 3.5
LOG_STD_MIDDLE = -1.5
"""log_std = -5 + 3.5 (tanh(raw) + 1) = 3.5 tanh(raw) - 1.5: between -5 and 2."""
OPERATORS = frozenset({"Sub", "Div", "Gemm", "Relu", "Split", "Tanh", "Mul", "Add", "Exp"})
"""Every operator a policy file may contain."""


def build_graph(obs_dim: int, action_dim: int, hidden: Sequence[int]) -> onnx.ModelProto:
    """Return the acting graph: inputs obs [1, O], noise [1, A] and all weights; output action [1, A].

    action = offset + scale * tanh(mean + exp(log_std) * noise), so zero noise is the deterministic policy.
    The weights' names and shapes are `weight_shapes`. Raises PolicyError for a dimension below 1.
    """
    shapes = weight_shapes(obs_dim, action_dim, hidden)
    constants: dict[str, NDArray[np.float32] | NDArray[np.int64]] = {
        "log_std_slope": np.array(LOG_STD_SLOPE, np.float32),
        "log_std_middle": np.array(LOG_STD_MIDDLE, np.float32),
        "mean_and_raw_widths": np.array([action_dim, action_dim], np.int64),
    }
    nodes = [
        _node("Sub", ("obs", "obs_mean"), "centred"),
        _node("Div", ("centred", "obs_scale"), "normalised"),
    ]
    last = "normalised"
    for layer in range(len(hidden)):
        nodes.append(_node("Gemm", (last, f"w{layer}", f"b{layer}"), f"sum{layer}"))
        last = f"hidden{layer}"
        nodes.append(_node("Relu", (f"sum{layer}",), last))
    head = len(hidden)
    nodes += [
        _node("Gemm", (last, f"w{head}", f"b{head}"), "head"),
        helper.make_node(
            "Split", ["head", "mean_and_raw_widths"], ["mean", "raw_log_std"], "mean_and_raw_log_std", axis=1
        ),
        _node("Tanh", ("raw_log_std",), "bounded"),
        _node("Mul", ("bounded", "log_std_slope"), "sloped"),
        _node("Add", ("sloped", "log_std_middle"), "log_std"),
        _node("Exp", ("log_std",), "std"),
        _node("Mul", ("std", "noise"), "deviation"),
        _node("Add", ("mean", "deviation"), "pre_tanh"),
        _node("Tanh", ("pre_tanh",), "squashed"),
        _node("Mul", ("squashed", "action_scale"), "scaled"),
        _node("Add", ("scaled", "action_offset"), "action"),
    ]
    inputs = {"obs": (1, obs_dim), "noise": (1, action_dim), **shapes}
    graph = helper.make_graph(
        nodes,
        "policy",
        [_float_tensor(name, shape) for name, shape in inputs.items()],
        [_float_tensor("action", (1, action_dim))],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR,
        producer_name="edge-sac",
        producer_version=edge_sac.__version__,
    )
    return model


def freeze(model: onnx.ModelProto, weights: Weights) -> onnx.ModelProto:
    """Return a copy of the graph with the weights as initialisers and zero noise as the default.

    `noise` stays an input, with an initialiser of the same name: ONNX Runtime then takes it as an overridable
    initialiser, and one step runs from obs alone. Raises PolicyError when names or shapes are not the
    graph's.
    """
    shapes = {value.name: _shape(value) for value in model.graph.input}
    noise_shape = shapes.pop("noise")
    del shapes["obs"]
    check_shapes(weights, shapes)
    frozen = onnx.ModelProto()
    frozen.CopyFrom(model)
    kept = [value for value in frozen.graph.input if value.name in ("obs", "noise")]
    del frozen.graph.input[:]
    frozen.graph.input.extend(kept)
    defaults = {**{name: weights[name] for name in shapes}, "noise": np.zeros(noise_shape, np.float32)}
    frozen.graph.initializer.extend(
        numpy_helper.from_array(np.ascontiguousarray(value), name) for name, value in defaults.items()
    )
    return frozen


def frozen_weights(model: onnx.ModelProto, names: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[np.float32]]:
    """Return the initialisers of a frozen graph that are named in `names`, each [...] as stored."""
    return {
        tensor.name: np.array(numpy_helper.to_array(tensor))
        for tensor in model.graph.initializer
        if tensor.name in names
    }


def _node(operator: str, inputs: Sequence[str], output: str) -> onnx.NodeProto:
    return helper.make_node(operator, list(inputs), [output], name=output)


def _float_tensor(name: str, shape: tuple[int, ...]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))


def _shape(value: onnx.ValueInfoProto) -> tuple[int, ...]:
    return tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
