from __future__ import annotations

import errno
import json
import os

import msgspec
import numpy as np
import onnx
import pytest

import edge_sac
from edge_sac import export
from edge_sac.contract import ActionChannel, Contract, ObservationChannel
from edge_sac.errors import PolicyError
from edge_sac.export import export_policy
from edge_sac.policy import Policy
from edge_sac.policy_file import CONTRACT_KEY, GOLDEN_KEY, Golden
from edge_sac.policy_graph import freeze
from edge_sac.policy_weights import weight_shapes, weights_hash

pytest.importorskip("onnxruntime")


def write(path, case, **changes):
    given = {"weights": case.weights, "contract": case.contract, "observations": case.observations, **changes}
    export_policy(path, **given)


def refused(path, case, match, **changes):
    """Check that the export is refused, and that neither a file nor an unfinished one is left."""
    before = {entry.name: entry.read_bytes() for entry in path.parent.iterdir()}
    with pytest.raises(PolicyError, match=match):
        write(path, case, **changes)
    assert {entry.name: entry.read_bytes() for entry in path.parent.iterdir()} == before


@pytest.fixture
def path(tmp_path):
    return tmp_path / "policy.onnx"


def plain_contract(wide, driven, hidden):
    return Contract(
        robot="Plain-v0",
        kind="gym",
        observation=tuple(ObservationChannel(name=f"obs{i}", unit="1") for i in range(wide)),
        action=tuple(ActionChannel(name=f"action{i}", unit="1", lower=-1.0, upper=1.0) for i in range(driven)),
        hidden=hidden,
    )


def plain_weights(wide, driven, hidden, draw):
    weights = {name: draw(shape).astype(np.float32) for name, shape in weight_shapes(wide, driven, hidden).items()}
    weights["obs_mean"].fill(0.0)
    weights["obs_scale"].fill(1.0)
    weights["action_offset"].fill(0.0)
    weights["action_scale"].fill(1.0)
    return weights


def test_the_file_carries_contract_hash_producer_and_32_golden_vectors(path, policy_case):
    write(path, policy_case)
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    found = {entry.key: entry.value for entry in model.metadata_props}
    expected = msgspec.structs.replace(policy_case.contract, weights_hash=weights_hash(policy_case.weights))
    assert Contract.from_json(found[CONTRACT_KEY]) == expected
    obs, noise, action = msgspec.json.decode(found[GOLDEN_KEY], type=Golden).unpack(3, 2)
    assert (obs.shape, noise.shape, action.shape) == ((32, 3), (32, 2), (32, 2))
    assert (model.producer_name, model.producer_version) == ("edge-sac", edge_sac.__version__)


def test_golden_vectors_hold_recorded_observations_with_and_without_noise(path, policy_case):
    write(path, policy_case)
    entry = next(e for e in onnx.load(path).metadata_props if e.key == GOLDEN_KEY)
    obs, noise, action = msgspec.json.decode(entry.value, type=Golden).unpack(3, 2)
    recorded = {row.tobytes() for row in policy_case.observations}
    assert sum(row.tobytes() in recorded for row in obs) == 16
    assert np.all(noise[::2] == 0)
    assert np.all(noise[1::2] != 0)
    policy = Policy.load(path)
    for one, draw, wanted in zip(obs, noise, action, strict=True):
        assert policy.act(one, draw).tobytes() == wanted.tobytes()


def test_a_single_recorded_observation_is_enough(path, policy_case):
    write(path, policy_case, observations=policy_case.observations[:1])
    Policy.load(path)


def test_exporting_twice_gives_the_same_bytes_and_nothing_beside_the_file(path, policy_case):
    write(path, policy_case)
    first = path.read_bytes()
    write(path, policy_case)
    assert path.read_bytes() == first
    assert [entry.name for entry in path.parent.iterdir()] == ["policy.onnx"]


def test_a_better_policy_replaces_the_older_file(path, policy_case, other_policy_case):
    write(path, policy_case)
    write(path, other_policy_case)
    assert Policy.load(path).hash == weights_hash(other_policy_case.weights)


@pytest.mark.parametrize(("wide", "hidden"), [(48, (256, 256)), (4, ()), (2, (8,)), (17, (64, 64, 64, 64))])
@pytest.mark.parametrize("size", [0.1, 1.0, 10.0])
def test_no_correct_policy_is_refused_even_with_all_terms_of_one_sign(path, wide, hidden, size):
    """Sums of one sign leave the bound no slack: the measured worst case, about half of what is allowed."""
    rng = np.random.default_rng(int(size * 10) + wide)
    weights = plain_weights(wide, 2, hidden, lambda s: size * np.abs(rng.standard_normal(s)) / s[0])
    observations = np.abs(rng.standard_normal((200, wide)))
    export_policy(path, weights, plain_contract(wide, 2, hidden), observations)


def frozen_with(**wrong):
    def wrongly(model, weights):
        return freeze(model, {**weights, **{name: change(weights[name]) for name, change in wrong.items()}})

    return wrongly


def frozen_with_relu_as_tanh(model, weights):
    frozen = freeze(model, weights)
    next(node for node in frozen.graph.node if node.op_type == "Relu").op_type = "Tanh"
    return frozen


def frozen_with_another_log_std(model, weights):
    frozen = freeze(model, weights)
    constant = next(t for t in frozen.graph.initializer if t.name == "log_std_middle")
    constant.CopyFrom(onnx.numpy_helper.from_array(np.float32(-1.4999), "log_std_middle"))
    return frozen


@pytest.mark.parametrize(
    "wrongly",
    [
        pytest.param(frozen_with(obs_mean=np.zeros_like), id="mean left out"),
        pytest.param(frozen_with(obs_scale=np.ones_like), id="scale left out"),
        pytest.param(frozen_with(action_scale=np.ones_like), id="action scale left out"),
        pytest.param(frozen_with(action_offset=lambda v: v[::-1]), id="actions swapped"),
        pytest.param(frozen_with(b2=lambda v: v + np.float32(1e-4)), id="a bias off by 1e-4"),
        pytest.param(frozen_with(w1=lambda v: v.astype(np.float16).astype(np.float32)), id="weights in half"),
        pytest.param(frozen_with_relu_as_tanh, id="another activation"),
        pytest.param(frozen_with_another_log_std, id="another log_std, seen only with noise"),
    ],
)
def test_a_graph_that_computes_another_function_is_refused_and_the_older_file_kept(
    path, policy_case, monkeypatch, wrongly
):
    write(path, policy_case)
    monkeypatch.setattr(export, "freeze", wrongly)
    refused(path, policy_case, "from its float64 reference, .* times what float32 allows")


def test_what_only_shows_at_the_boundary_of_a_channel_is_compared_too(path, policy_case, monkeypatch):
    """A hidden unit that wakes six scales from the mean, where no recorded or random observation is."""
    weights = policy_case.weights
    weights["w0"][:, 0] = [0.0, 0.0, 1.0]
    weights["b0"][0] = -6.0
    write(path, policy_case)

    def wrongly(model, weights):
        outgoing = weights["w1"].copy()
        outgoing[0] += 1.0
        return freeze(model, {**weights, "w1": outgoing})

    monkeypatch.setattr(export, "freeze", wrongly)
    refused(path, policy_case, "from its float64 reference")


def test_weights_that_overflow_float32_are_refused(path, policy_case):
    weights = {**policy_case.weights, "w0": np.full_like(policy_case.weights["w0"], 3e38)}
    refused(path, policy_case, "not written: action 0 is nan", weights=weights)


@pytest.mark.parametrize(
    ("name", "index", "value", "match"),
    [
        ("w1", (0, 0), np.nan, r"w1\[0, 0\] is nan"),
        ("action_scale", 1, 0.0, r"action_scale\[1\] is 0"),
        ("obs_mean", 1, -1.5, "arm_speed: mean is -1.0 in the contract, obs_mean holds -1.5"),
        ("obs_scale", 0, 0.25, "arm_angle: scale is 0.5 in the contract, obs_scale holds 0.25"),
        ("action_offset", 1, 1.5, "valve: range is 0.5 to 2 in the contract, 0.75 to 2.25 in the weights"),
    ],
)
def test_weights_that_are_not_the_contracts_are_refused(path, policy_case, name, index, value, match):
    policy_case.weights[name][index] = value
    refused(path, policy_case, match)


def test_a_contract_of_other_weights_is_refused(path, policy_case, other_policy_case):
    contract = msgspec.structs.replace(policy_case.contract, weights_hash=weights_hash(other_policy_case.weights))
    refused(path, policy_case, "weights hash to .*, the contract says", contract=contract)


def test_hidden_widths_that_are_not_the_networks_are_refused(path, policy_case):
    contract = msgspec.structs.replace(policy_case.contract, hidden=(32, 8))
    refused(path, policy_case, r"w1 is float32 \[32, 16\]", contract=contract)


@pytest.mark.parametrize(
    ("observations", "match"),
    [
        (np.zeros((0, 3)), r"shape \[0, 3\]; expected \[N, 3\]"),
        (np.zeros((5, 4)), r"shape \[5, 4\]"),
        (np.zeros(3), r"shape \[3\]"),
        (np.array([[0.0, np.nan, 0.0]]), "recorded observation of arm_speed is nan"),
        (np.array([[0.0, 0.0, 1e39]]), "recorded observation of pendulum_speed is inf"),
    ],
)
def test_observations_that_prove_nothing_are_refused(path, policy_case, observations, match):
    refused(path, policy_case, match, observations=observations)


def test_a_long_recording_is_thinned_over_its_whole_length(path, policy_case, monkeypatch):
    monkeypatch.setattr(export, "RECORDED_COUNT", 5)
    rows = np.tile(policy_case.observations[:1], (101, 1))
    rows[100, 0] = np.nan
    refused(path, policy_case, "arm_angle is nan", observations=rows)


def test_a_full_disk_leaves_the_older_file_and_nothing_else(path, policy_case, other_policy_case, monkeypatch):
    write(path, policy_case)

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    refused(path, other_policy_case, "No space left on device; give a writable folder with space")


def test_a_file_that_does_not_read_back_is_not_put_in_place(path, policy_case, other_policy_case, monkeypatch):
    write(path, policy_case)
    encode = msgspec.json.encode

    def lossy(value):
        return encode(msgspec.structs.replace(value, count=31) if isinstance(value, Golden) else value)

    monkeypatch.setattr(export.msgspec.json, "encode", lossy)
    refused(path, other_policy_case, "does not read back: .* 31 found, expected 32")


def test_the_file_is_synced_before_it_is_renamed_and_the_folder_after(path, policy_case, monkeypatch):
    events = []
    sync, rename = os.fsync, type(path).replace

    def fsync(descriptor):
        events.append("folder" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "file")  # noqa: PTH112
        sync(descriptor)

    def replace(self, target):
        events.append("rename")
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(type(path), "replace", replace)
    write(path, policy_case)
    assert events == ["file", "rename", "folder"]


@pytest.mark.parametrize("target", ["missing/policy.onnx", "."])
def test_a_path_that_cannot_be_a_file_is_refused(tmp_path, policy_case, target):
    with pytest.raises(PolicyError, match="give a file name in a folder that exists"):
        write(tmp_path / target, policy_case)
    assert list(tmp_path.iterdir()) == []


def test_the_contract_in_the_file_is_plain_json_anyone_can_read(path, policy_case):
    write(path, policy_case)
    entry = next(e for e in onnx.load(path).metadata_props if e.key == CONTRACT_KEY)
    data = json.loads(entry.value)
    assert data["observation"][1] == {
        "name": "arm_speed",
        "unit": "rad/s",
        "lower": -30.0,
        "upper": 30.0,
        "mean": -1.0,
        "scale": 8.0,
    }
    assert data["control_hz"] == 50.0
