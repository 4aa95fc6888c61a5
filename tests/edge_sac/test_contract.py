from __future__ import annotations

import json

import msgspec
import pytest

from edge_sac.contract import ActionChannel, Contract, ObservationChannel
from edge_sac.errors import PolicyError


def changed(value, **changes):
    return msgspec.structs.replace(value, **changes)


def test_a_contract_survives_json(policy_case):
    assert Contract.from_json(policy_case.contract.to_json()) == policy_case.contract


def test_an_unbounded_channel_is_none_and_survives_json(policy_case):
    text = policy_case.contract.to_json()
    assert json.loads(text)["observation"][2]["lower"] is None
    assert Contract.from_json(text).observation[2].lower is None


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param(lambda d: d.update(color="red"), "color", id="unknown key"),
        pytest.param(lambda d: d["action"][0].update(gain=1), "gain", id="unknown key of a channel"),
        pytest.param(lambda d: d.pop("observation"), "observation", id="missing key"),
        pytest.param(lambda d: d.update(schema=2, color="red"), "schema is 2.*newer edge-sac", id="newer"),
        pytest.param(lambda d: d.update(kind="boat"), "boat", id="kind"),
        pytest.param(lambda d: d.update(control_hz="fast"), "control_hz", id="type"),
        pytest.param(lambda d: d.update(control_hz=None), "control_hz and rate_tolerance are mandatory", id="rate"),
        pytest.param(lambda d: d.update(control_hz=0), "control_hz is 0", id="zero rate"),
        pytest.param(lambda d: d.update(rate_tolerance=1.0), "rate_tolerance is 1", id="tolerance"),
        pytest.param(lambda d: d.update(action=[]), "action: no channels", id="no action"),
        pytest.param(lambda d: d["observation"].append(d["observation"][0]), "not unique", id="twice"),
    ],
)
def test_wrong_json_is_refused_by_field(policy_case, change, named):
    data = json.loads(policy_case.contract.to_json())
    change(data)
    with pytest.raises(PolicyError, match=named):
        Contract.from_json(json.dumps(data))


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b"\xff\xfe", "nonsense"])
def test_text_that_is_no_contract_is_refused(text):
    with pytest.raises(PolicyError, match="contract: "):
        Contract.from_json(text)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: ActionChannel(name="arm", unit="N m", lower=-1.0, upper=float("inf")), "upper is inf"),
        (lambda: ActionChannel(name="arm", unit="N m", lower=1.0, upper=1.0), "lower 1 is not below upper 1"),
        (lambda: ObservationChannel(name="angle", unit="rad", mean=float("nan")), "mean is nan"),
        (lambda: ObservationChannel(name="angle", unit="rad", scale=0.0), "scale is 0"),
        (lambda: ObservationChannel(name="angle", unit="rad", lower=2.0, upper=-2.0), "not below"),
    ],
)
def test_a_channel_that_cannot_be_is_refused_with_its_number(make, named):
    with pytest.raises(PolicyError, match=named):
        make()


def test_a_limit_that_is_not_finite_is_refused(policy_case):
    with pytest.raises(PolicyError, match="limits of arm: torque is nan"):
        changed(policy_case.contract, limits={"arm": {"torque": float("nan")}})


def test_a_policy_fits_its_own_robot_whatever_the_network(policy_case):
    robot = changed(policy_case.contract, hidden=(), precision="", weights_hash="", training=None, rate_tolerance=0.01)
    policy_case.contract.check_fits(robot)


def test_a_normaliser_of_the_robots_own_is_not_compared(policy_case):
    contract = policy_case.contract
    first = changed(contract.observation[0], mean=0.0, scale=1.0)
    contract.check_fits(changed(contract, observation=(first, *contract.observation[1:])))


def test_a_gym_policy_needs_no_control_rate(policy_case):
    gym = changed(policy_case.contract, kind="gym", robot="Pendulum-v1", control_hz=None, rate_tolerance=None)
    gym.check_fits(gym)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        pytest.param({"kind": "gym"}, "kind: policy 'robot', robot 'gym'", id="kind"),
        pytest.param({"robot": "arm6"}, "robot: policy 'furuta', robot 'arm6'", id="robot"),
        pytest.param({"robot_hash": "cd" * 32}, "robot_hash: policy 'abababababab'", id="hash"),
        pytest.param({"robot_hash": "ab" * 31 + "cd"}, "robot_hash: policy '(ab){32}'", id="hash, late byte"),
        pytest.param({"control_hz": 44.9}, r"control_hz: policy 50 \(within 5\), robot 44.9", id="too slow"),
        pytest.param({"control_hz": 55.1}, r"control_hz: policy 50 \(within 5\), robot 55.1", id="too fast"),
        pytest.param({"limits": {}}, "limits.arm.torque: policy 0.25, robot None", id="no limits"),
        pytest.param({"limits": {"arm": {"torque": 0.5, "speed": 30.0}}}, "limits.arm.torque: policy 0.25", id="limit"),
        pytest.param(
            {"limits": {"arm": {"torque": 0.25, "speed": 30.0}, "leg": {"torque": 1.0}}},
            "limits.leg.torque: policy None, robot 1.0",
            id="a limit more",
        ),
    ],
)
def test_each_mismatching_field_is_named(policy_case, change, named):
    with pytest.raises(PolicyError, match=named):
        policy_case.contract.check_fits(changed(policy_case.contract, **change))


@pytest.mark.parametrize("rate", [45.0, 50.0, 55.0])
def test_the_control_rate_may_differ_up_to_the_tolerance(policy_case, rate):
    policy_case.contract.check_fits(changed(policy_case.contract, control_hz=rate))


@pytest.mark.parametrize("field", ["unit", "lower", "upper"])
@pytest.mark.parametrize("what", ["observation", "action"])
def test_each_field_of_a_channel_is_compared(policy_case, what, field):
    channels = getattr(policy_case.contract, what)
    value = {"unit": "deg", "lower": -99.0, "upper": 99.0}[field]
    other = changed(policy_case.contract, **{what: (changed(channels[0], **{field: value}), *channels[1:])})
    with pytest.raises(PolicyError, match=f"{what}.{channels[0].name}.{field}: policy .*, robot {value!r}"):
        policy_case.contract.check_fits(other)


@pytest.mark.parametrize("what", ["observation", "action"])
def test_swapped_channels_are_called_an_order_and_renamed_ones_names(policy_case, what):
    channels = getattr(policy_case.contract, what)
    swapped = changed(policy_case.contract, **{what: channels[::-1]})
    renamed = changed(policy_case.contract, **{what: (changed(channels[0], name="other"), *channels[1:])})
    shorter = changed(policy_case.contract, **{what: channels[1:]})
    with pytest.raises(PolicyError, match=f"{what} order: policy {channels[0].name}, "):
        policy_case.contract.check_fits(swapped)
    with pytest.raises(PolicyError, match=f"{what} names: policy {channels[0].name}, .* robot other, "):
        policy_case.contract.check_fits(renamed)
    with pytest.raises(PolicyError, match=f"{what} names: "):
        policy_case.contract.check_fits(shorter)


def test_all_mismatches_are_named_at_once_in_one_line(policy_case):
    other = changed(policy_case.contract, control_hz=100.0, robot_hash="", action=policy_case.contract.action[::-1])
    with pytest.raises(PolicyError) as caught:
        policy_case.contract.check_fits(other)
    message = str(caught.value)
    assert all(part in message for part in ("control_hz", "robot_hash", "action order"))
    assert "\n" not in message
