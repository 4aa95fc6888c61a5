from __future__ import annotations

import subprocess
import sys
import types

import msgspec
import numpy as np
import pytest

from edge_sac.errors import MissingExtra, NonFinite, PolicyError
from edge_sac.export import export_policy
from edge_sac.policy import ActingPolicy, Policy
from edge_sac.policy_reference import action_tolerance, reference_action
from edge_sac.policy_weights import weights_hash

ort = pytest.importorskip("onnxruntime")


def live_policy(case):
    acting = ActingPolicy(3, 2, case.contract.hidden, [c.name for c in case.contract.observation])
    acting.publish(case.weights)
    return acting


@pytest.fixture
def live(policy_case):
    return live_policy(policy_case)


@pytest.fixture
def exported(policy_case, tmp_path):
    export_policy(tmp_path / "policy.onnx", policy_case.weights, policy_case.contract, policy_case.observations)
    return tmp_path / "policy.onnx"


def test_the_live_policy_is_within_float32_of_the_float64_reference(policy_case, live):
    obs, noise = policy_case.observations, policy_case.noise
    for draw in (noise, np.zeros_like(noise)):
        got = np.array([live.act(one, n) for one, n in zip(obs, draw, strict=True)])
        error = np.abs(got - reference_action(policy_case.weights, obs, draw))
        # The bound is derived and measured where it is defined.
        assert np.all(error <= action_tolerance(policy_case.weights, obs, draw))


def test_live_and_exported_policies_give_the_same_bits(policy_case, live, exported):
    frozen = Policy.load(exported)
    for one, draw in zip(policy_case.observations, policy_case.noise, strict=True):
        assert live.act(one, draw).tobytes() == frozen.act(one, draw).tobytes()
        assert live.act(one).tobytes() == frozen.act(one).tobytes()


def test_a_wide_policy_gives_the_same_bits_live_and_exported(policy_case, tmp_path):
    """256 wide is where the runtime would pack constant weights and sum them in another order."""
    rng = np.random.default_rng(3)
    widths = (3, 256, 256, 4)
    for layer in range(3):
        shape = widths[layer : layer + 2]
        policy_case.weights[f"w{layer}"] = (rng.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
        policy_case.weights[f"b{layer}"] = rng.standard_normal(shape[1]).astype(np.float32)
    contract = msgspec.structs.replace(policy_case.contract, hidden=(256, 256))
    export_policy(tmp_path / "policy.onnx", policy_case.weights, contract, policy_case.observations)
    frozen = Policy.load(tmp_path / "policy.onnx")
    live = ActingPolicy(3, 2, (256, 256))
    live.publish(policy_case.weights)
    for one, draw in zip(policy_case.observations, policy_case.noise, strict=True):
        assert live.act(one, draw).tobytes() == frozen.act(one, draw).tobytes()


def test_noise_left_out_is_zero_noise_even_after_a_noisy_step(policy_case, live):
    obs = policy_case.observations[0]
    quiet = live.act(obs, np.zeros(2, np.float32))
    assert not np.array_equal(live.act(obs, np.ones(2, np.float32)), quiet)
    np.testing.assert_array_equal(live.act(obs), quiet)


def test_a_plain_session_acts_deterministically_from_obs_alone(policy_case, live, exported):
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(str(exported), options, providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == ["obs"]
    assert [value.name for value in session.get_overridable_initializers()] == ["noise"]
    obs = policy_case.observations[:1]
    allowed = 2.0 * action_tolerance(policy_case.weights, obs, np.zeros((1, 2)))
    assert np.all(np.abs(session.run(["action"], {"obs": obs})[0] - live.act(obs[0])) <= allowed)
    noisy = session.run(["action"], {"obs": obs, "noise": policy_case.noise[:1]})[0]
    assert np.all(np.abs(noisy - live.act(obs[0])) > allowed)


def test_a_published_version_replaces_the_last_one_whole(policy_case, other_policy_case, live):
    obs = policy_case.observations[0]
    expected = live_policy(other_policy_case).act(obs)
    assert not np.array_equal(live.act(obs), expected)
    live.publish(other_policy_case.weights)
    assert live.act(obs).tobytes() == expected.tobytes()
    assert live.version == 2


def test_published_arrays_are_copied_and_returned_actions_are_the_callers(policy_case, live):
    obs = policy_case.observations[0]
    first = live.act(obs)
    kept = first.copy()
    for value in policy_case.weights.values():
        value.fill(7.0)
    assert live.act(obs).tobytes() == kept.tobytes()
    live.act(-obs)
    assert first.tobytes() == kept.tobytes()


@pytest.mark.parametrize(
    ("change", "error", "named"),
    [
        (lambda w: w.pop("b1"), PolicyError, "missing"),
        (lambda w: w.update(b0=w["b0"][:1]), PolicyError, "weight b0"),
        (lambda w: w["action_offset"].__setitem__(1, np.nan), NonFinite, r"action_offset\[1\] is nan"),
        (lambda w: w["w0"].__setitem__((2, 5), np.inf), NonFinite, r"w0\[2, 5\] is inf"),
        (lambda w: w["obs_scale"].__setitem__(0, 0.0), NonFinite, r"obs_scale\[0\] is 0"),
    ],
)
def test_refused_weights_leave_the_last_version_acting(policy_case, other_policy_case, live, change, error, named):
    obs = policy_case.observations[0]
    before = live.act(obs)
    change(other_policy_case.weights)
    with pytest.raises(error, match=named):
        live.publish(other_policy_case.weights)
    assert live.act(obs).tobytes() == before.tobytes()
    assert live.version == 1


def test_acting_before_anything_was_published_is_refused():
    with pytest.raises(PolicyError, match="no weights were published"):
        ActingPolicy(3, 2, (8,)).act(np.zeros(3, np.float32))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_observation_that_is_not_finite_is_named_by_index_and_name(live, bad):
    with pytest.raises(NonFinite, match=rf"observation channel 1 \(arm_speed\) is {bad}"):
        live.act(np.array([0.0, bad, 0.0], np.float32))


def test_an_observation_beyond_float32_is_refused_not_acted_on(live):
    with pytest.raises(NonFinite, match=r"observation channel 2 .* is inf"):
        live.act(np.array([0.0, 0.0, 1e39]))


def test_a_policy_recovers_after_a_bad_observation(policy_case, live):
    before = live.act(policy_case.observations[0])
    with pytest.raises(NonFinite):
        live.act(np.full(3, np.nan, np.float32))
    assert live.act(policy_case.observations[0]).tobytes() == before.tobytes()


def test_an_action_that_is_not_finite_never_leaves(policy_case, live):
    # Finite weights whose sums overflow to inf - inf in the next layer.
    weights = dict(policy_case.weights)
    weights["w0"] = np.full_like(weights["w0"], 3e38)
    live.publish(weights)
    with pytest.raises(NonFinite, match="action 0 is nan from finite observations"):
        live.act(np.array([3.0, 30.0, 30.0], np.float32))


def test_noise_that_is_not_finite_never_becomes_an_action(policy_case, live):
    with pytest.raises(NonFinite, match="action 1 is nan"):
        live.act(policy_case.observations[0], np.array([0.0, np.nan], np.float32))


@pytest.mark.parametrize("shape", [(), (1,), (2,), (4,), (1, 3), (3, 1)])
def test_an_observation_of_another_shape_is_refused_even_if_it_would_broadcast(live, shape):
    with pytest.raises(PolicyError, match=r"obs has shape .* takes \[3\]"):
        live.act(np.zeros(shape, np.float32))


def test_noise_of_another_shape_is_refused(policy_case, live):
    with pytest.raises(PolicyError, match=r"noise has shape \[1\]; the policy takes \[2\]"):
        live.act(policy_case.observations[0], np.zeros(1, np.float32))


def test_float64_observations_act_as_their_float32_rounding(policy_case, live):
    obs = policy_case.observations[0]
    assert live.act(obs.astype(np.float64)).tobytes() == live.act(obs).tobytes()


def test_a_loaded_policy_knows_its_contract_hash_and_provider(policy_case, exported):
    policy = Policy.load(str(exported))
    assert policy.hash == weights_hash(policy_case.weights) == policy.contract.weights_hash
    assert policy.contract.robot == "furuta"
    assert policy.provider == "CPUExecutionProvider"


def test_a_loaded_policy_names_the_channel_that_is_not_finite(exported):
    with pytest.raises(NonFinite, match=r"channel 0 \(arm_angle\) is nan"):
        Policy.load(exported).act(np.array([np.nan, 0.0, 0.0], np.float32))


def test_without_the_runtime_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtra, match=r"pip install 'edge-sac\[cpu\]'.*x86-64.*CUDA.*edge-sac\[gpu\]"):
        ActingPolicy(3, 2, (8,))


def test_a_runtime_of_which_only_the_folder_is_left_is_called_broken(monkeypatch, exported):
    monkeypatch.setitem(sys.modules, "onnxruntime", types.ModuleType("onnxruntime"))
    with pytest.raises(MissingExtra, match=r"broken; uninstall every onnxruntime"):
        Policy.load(exported)


def test_a_policy_acts_without_torch_or_the_robots_being_imported(exported):
    script = (
        "import sys, numpy; from edge_sac.policy import Policy, ActingPolicy; import edge_sac.export;"
        f"Policy.load({str(exported)!r}).act(numpy.zeros(3, numpy.float32));"
        "print(sorted({'torch', 'robots', 'sim', 'gymnasium'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
    assert done.stderr == ""
