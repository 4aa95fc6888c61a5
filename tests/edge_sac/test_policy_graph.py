from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import edge_sac
from edge_sac.errors import PolicyError
from edge_sac.policy_graph import OPERATORS, build_graph, freeze
from edge_sac.policy_weights import weight_shapes


def names(values):
    return [value.name for value in values]


@pytest.mark.parametrize("hidden", [(), (8,), (32, 16), (4, 4, 4)])
def test_every_depth_passes_the_full_checker(hidden):
    onnx.checker.check_model(build_graph(3, 2, hidden), full_check=True)


def test_obs_is_the_first_input_noise_the_second_then_the_weights_and_action_the_first_output():
    graph = build_graph(3, 2, (32, 16)).graph
    assert names(graph.input) == ["obs", "noise", *weight_shapes(3, 2, (32, 16))]
    assert names(graph.output) == ["action"]


def test_opset_and_ir_are_what_onnxruntime_1_17_reads():
    model = build_graph(3, 2, (8,))
    assert model.ir_version <= 9
    assert [(entry.domain, entry.version) for entry in model.opset_import] == [("", 17)]


def test_the_producer_is_this_package():
    model = build_graph(3, 2, (8,))
    assert (model.producer_name, model.producer_version) == ("edge-sac", edge_sac.__version__)


def test_nodes_are_named_after_what_they_compute():
    nodes = build_graph(3, 2, (8,)).graph.node
    assert all(node.name for node in nodes)
    assert len(set(names(nodes))) == len(nodes)
    assert {"normalised", "hidden0", "log_std", "pre_tanh", "action"} <= set(names(nodes))
    assert {node.op_type for node in nodes} <= OPERATORS


def test_freezing_keeps_the_nodes_and_leaves_obs_and_noise_as_inputs(policy_case):
    model = build_graph(3, 2, (32, 16))
    before = model.SerializeToString(deterministic=True)
    frozen = freeze(model, policy_case.weights)
    assert list(frozen.graph.node) == list(model.graph.node)
    assert names(frozen.graph.input) == ["obs", "noise"]
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in frozen.graph.initializer}
    for name, value in policy_case.weights.items():
        np.testing.assert_array_equal(stored[name], value)
    np.testing.assert_array_equal(stored["noise"], np.zeros((1, 2), np.float32))
    assert model.SerializeToString(deterministic=True) == before


def test_freezing_other_shapes_is_refused(policy_case):
    with pytest.raises(PolicyError, match=r"w1 is float32 \[32, 16\]; expected float32 \[32, 8\]"):
        freeze(build_graph(3, 2, (32, 8)), policy_case.weights)


def test_a_dimension_below_one_is_refused():
    with pytest.raises(PolicyError, match="actions: 0"):
        build_graph(3, 0, (8,))
