from __future__ import annotations

import numpy as np
import pytest

from edge_sac.errors import PolicyError
from edge_sac.policy_weights import bad_value, check_shapes, weight_shapes, weights_hash


def test_the_last_layer_is_numbered_after_the_hidden_ones_and_holds_mean_and_log_std():
    assert weight_shapes(3, 2, (8, 5)) == {
        "obs_mean": (3,),
        "obs_scale": (3,),
        "w0": (3, 8),
        "b0": (8,),
        "w1": (8, 5),
        "b1": (5,),
        "w2": (5, 4),
        "b2": (4,),
        "action_scale": (2,),
        "action_offset": (2,),
    }


def test_a_network_without_hidden_layers_is_one_affine_map():
    assert weight_shapes(3, 1, ())["w0"] == (3, 2)


@pytest.mark.parametrize(
    ("dims", "named"),
    [((0, 1, (8,)), "observations: 0"), ((1, 0, (8,)), "actions: 0"), ((1, 1, (8, 0)), "hidden width: 0")],
)
def test_a_dimension_below_one_is_refused_with_its_number(dims, named):
    with pytest.raises(PolicyError, match=named):
        weight_shapes(*dims)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param(lambda w: w.pop("b1"), r"missing \['b1'\]", id="missing"),
        pytest.param(lambda w: w.update(w9=w["b0"]), r"unknown \['w9'\]", id="unknown"),
        pytest.param(lambda w: w.update(w0=w["w0"].T), r"w0 is float32 \[32, 3\].*float32 \[3, 32\]", id="shape"),
        pytest.param(lambda w: w.update(w0=w["w0"].astype(np.float16)), "w0 is float16", id="dtype"),
        pytest.param(lambda w: w.update(b0=w["b0"][:1]), r"b0 is float32 \[1\]", id="would broadcast"),
    ],
)
def test_wrong_names_shapes_and_dtypes_are_named(policy_case, change, named):
    weights = dict(policy_case.weights)
    change(weights)
    with pytest.raises(PolicyError, match=named):
        check_shapes(weights, weight_shapes(3, 2, (32, 16)))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("w1", np.nan, r"w1[3, 2] is nan; it must be finite"),
        ("w1", -np.inf, r"w1[3, 2] is -inf; it must be finite"),
        ("obs_scale", 0.0, "obs_scale[2] is 0.0; it must be finite and above zero"),
        ("action_scale", -1.0, "action_scale[1] is -1.0; it must be finite and above zero"),
        ("obs_scale", np.nan, "obs_scale[2] is nan; it must be finite and above zero"),
    ],
)
def test_the_first_unusable_number_is_named_by_weight_and_index(policy_case, name, value, said):
    policy_case.weights[name][(3, 2) if name == "w1" else -1] = value
    assert bad_value(policy_case.weights) == said


def test_usable_weights_have_no_bad_value(policy_case):
    assert bad_value(policy_case.weights) is None


def test_the_hash_changes_with_one_bit_a_name_or_a_shape_but_not_with_order(policy_case):
    weights = policy_case.weights
    known = weights_hash(weights)
    assert weights_hash(dict(reversed(weights.items()))) == known
    flipped = {**weights, "b0": np.nextafter(weights["b0"], np.float32(9))}
    renamed = {("b9" if name == "b0" else name): value for name, value in weights.items()}
    reshaped = {**weights, "b0": weights["b0"].reshape(1, -1)}
    assert len({known, *(weights_hash(w) for w in (flipped, renamed, reshaped))}) == 4


def test_the_hash_sees_values_not_memory_layout(policy_case):
    weights = policy_case.weights
    turned = {**weights, "w0": np.asfortranarray(weights["w0"])}
    assert weights_hash(turned) == weights_hash(weights)
