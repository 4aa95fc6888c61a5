"""Every way a policy file can be damaged is refused with one line that says so."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from edge_sac.errors import PolicyError
from edge_sac.export import export_policy
from edge_sac.policy import Policy
from edge_sac.policy_file import CONTRACT_KEY, GOLDEN_KEY
from edge_sac.policy_weights import weights_hash

pytest.importorskip("onnxruntime")


@pytest.fixture
def exported(policy_case, tmp_path):
    path = tmp_path / "policy.onnx"
    export_policy(path, policy_case.weights, policy_case.contract, policy_case.observations)
    return path


def refusal(path):
    with pytest.raises(PolicyError) as caught:
        Policy.load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


def metadata(model, key):
    return next(entry for entry in model.metadata_props if entry.key == key)


def set_weight(model, name, value):
    """Put other numbers into an initialiser, as someone editing the file would."""
    tensor = next(t for t in model.graph.initializer if t.name == name)
    tensor.CopyFrom(numpy_helper.from_array(value, name))


def edit_json(model, key, change):
    entry = metadata(model, key)
    data = json.loads(entry.value)
    change(data)
    entry.value = json.dumps(data)


def nan_weight(model):
    weight = numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == "w1")).copy()
    weight[3, 2] = np.nan
    set_weight(model, "w1", weight)


def nudged_weight(model):
    weight = numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == "w1")).copy()
    weight[3, 2] = np.nextafter(weight[3, 2], np.float32(9))
    set_weight(model, "w1", weight)


def forget_golden(model):
    model.metadata_props.remove(metadata(model, GOLDEN_KEY))


def forget_contract(model):
    model.metadata_props.remove(metadata(model, CONTRACT_KEY))


def other_operator(model):
    relu = next(node for node in model.graph.node if node.op_type == "Relu")
    relu.op_type = "Sigmoid"


def foreign_domain(model):
    model.graph.node[0].domain = "com.example"
    model.opset_import.append(helper.make_opsetid("com.example", 1))


def swapped_activation(model):
    """Tanh for ReLU: every operator known, every weight right, another function."""
    relu = next(node for node in model.graph.node if node.op_type == "Relu")
    relu.op_type = "Tanh"


def rewired(model):
    next(node for node in model.graph.node if node.name == "head").input[0] = "hidden0"


def another_node(model):
    model.graph.node.append(helper.make_node("Tanh", ["action"], ["unused"], "unused"))


def lost_node(model):
    """The action without its offset."""
    model.graph.node.pop()
    model.graph.node[-1].output[0] = "action"


def another_constant(model):
    set_weight(model, "log_std_middle", np.float32(-1.4))


def narrower(model):
    set_weight(model, "w1", np.zeros((32, 8), np.float32))
    set_weight(model, "b1", np.zeros(8, np.float32))
    set_weight(model, "w2", np.zeros((8, 4), np.float32))


def external_weight(model):
    tensor = next(t for t in model.graph.initializer if t.name == "w1")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../weights.bin")


def another_output(model):
    value = helper.make_tensor_value_info("pre_tanh", onnx.TensorProto.FLOAT, [1, 2])
    model.graph.output.insert(0, value)


def noisy_default(model):
    set_weight(model, "noise", np.ones((1, 2), np.float32))


def no_default(model):
    model.graph.initializer.remove(next(t for t in model.graph.initializer if t.name == "noise"))


def golden_of_another(model):
    edit_json(model, GOLDEN_KEY, lambda d: d.update(action=d["action"][::-1].replace("=", "A")))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (forget_contract, "has no edge_sac.contract metadata"),
        (forget_golden, "has no edge_sac.golden metadata"),
        (nan_weight, "w1[3, 2] is nan"),
        (nudged_weight, "weights hash to "),
        (other_operator, "unknown operators: Sigmoid"),
        (foreign_domain, "unknown operators: com.example.Sub"),
        (swapped_activation, "node 3 is not the hidden0 of a policy"),
        (rewired, "is not "),
        (another_node, "has 18 nodes, a policy of this shape 17"),
        (lost_node, "is not "),
        (another_constant, "log_std_middle is not -1.5"),
        (narrower, "weight w1 is float32 [32, 8]; expected float32 [32, 16]"),
        (external_weight, "keeps weights in another file"),
        (
            another_output,
            "outputs are [('pre_tanh', [1, 2]), ('action', [1, 2])]; the contract asks for action",
        ),
        (noisy_default, "noise has no default of zeros"),
        (no_default, "noise has no default of zeros"),
        (golden_of_another, "golden vector"),
    ],
)
def test_a_changed_model_is_refused_with_what_changed(exported, damage, said):
    model = onnx.load(exported)
    damage(model)
    exported.write_bytes(model.SerializeToString())
    assert said in refusal(exported)


@pytest.mark.parametrize(
    ("key", "change", "said"),
    [
        (CONTRACT_KEY, lambda d: d.update(color="red"), "color"),
        (CONTRACT_KEY, lambda d: d.update(weights_hash=""), "the contract says nothing"),
        (CONTRACT_KEY, lambda d: d.update(schema=7), "schema is 7"),
        (CONTRACT_KEY, lambda d: d["action"].pop(), "the contract asks for obs [1, 3] and noise [1, 1]"),
        (CONTRACT_KEY, lambda d: d.update(hidden=[32]), "weight w1 is float32 [32, 16]; expected"),
        (CONTRACT_KEY, lambda d: d.update(hidden=[32, 16, 8]), "missing ['w3', 'b3']"),
        (
            CONTRACT_KEY,
            lambda d: d["observation"][1].update(mean=0.5),
            "arm_speed: mean is 0.5 in the contract",
        ),
        (
            CONTRACT_KEY,
            lambda d: d["action"][1].update(upper=2.5),
            "valve: range is 0.5 to 2.5 in the contract",
        ),
        (GOLDEN_KEY, lambda d: d.update(count=31), "31 found, expected 32"),
        (GOLDEN_KEY, lambda d: d.update(obs=d["obs"][:-8]), "obs holds 378 bytes"),
        (GOLDEN_KEY, lambda d: d.update(noise="?"), "noise is not base64"),
        (GOLDEN_KEY, lambda d: d.pop("action"), "golden vectors: Object missing required field `action`"),
    ],
)
def test_changed_metadata_is_refused_with_the_field(exported, key, change, said):
    model = onnx.load(exported)
    edit_json(model, key, change)
    exported.write_bytes(model.SerializeToString())
    assert said in refusal(exported)


def test_a_file_of_another_kind_is_not_called_truncated(tmp_path):
    path = tmp_path / "policy.onnx"
    path.write_bytes(b"PK\x03\x04 a zip file")
    assert "is not an ONNX file" in refusal(path)


def test_an_empty_file_a_missing_one_and_a_folder_are_told_apart(tmp_path):
    empty = tmp_path / "empty.onnx"
    empty.touch()
    assert "is empty" in refusal(empty)
    assert "No such file" in refusal(tmp_path / "missing.onnx")
    assert "Is a directory" in refusal(tmp_path)


def test_a_file_cut_anywhere_is_refused(exported):
    whole = exported.read_bytes()
    cuts = [*range(1, 40), *range(40, len(whole), 97), *range(len(whole) - 40, len(whole))]
    for cut in cuts:
        exported.write_bytes(whole[:cut])
        said = refusal(exported)
        # Between two entries of the metadata, at the very end, a cut is a smaller but whole message.
        assert "truncated or damaged" in said or cut > len(whole) // 2


def test_a_file_cut_inside_its_graph_is_called_truncated(exported):
    whole = exported.read_bytes()
    exported.write_bytes(whole[: len(whole) // 2])
    assert f"is truncated or damaged ({len(whole) // 2} bytes)" in refusal(exported)


def test_a_model_that_is_not_a_policy_is_refused(tmp_path):
    value = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    out = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "other", [value], [out])
    path = tmp_path / "other.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    assert "only files written by edge-sac export" in refusal(path)


def test_weights_of_another_policy_do_not_pass_with_their_own_hash(exported, other_policy_case):
    """Hash and weights agree, the golden vectors do not: two files were mixed."""
    model = onnx.load(exported)
    for name, value in other_policy_case.weights.items():
        set_weight(model, name, value)
    edit_json(model, CONTRACT_KEY, lambda d: d.update(weights_hash=weights_hash(other_policy_case.weights)))
    exported.write_bytes(model.SerializeToString())
    assert "golden vector 0 does not reproduce: action " in refusal(exported)
