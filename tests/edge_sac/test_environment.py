"""What a run trains on is named, or refused in a line that says what there is."""

import gymnasium
import pytest
from gymnasium.spaces import Box

from edge_sac.commands import environment as module
from edge_sac.commands.environment import environment
from edge_sac.config import Config
from edge_sac.errors import ConfigError, MissingExtra
from sim.registration import DMC_TASKS, suite_available


class Named(gymnasium.Env):
    """Names its channels."""

    observation_space = Box(-1.0, 1.0, (2,))
    action_space = Box(-1.0, 1.0, (1,))
    observation_names = ("angle", "speed")
    action_names = ("hinge",)
    control_hz = 40.0


class Nameless(gymnasium.Env):
    """Does not."""

    observation_space = Box(-1.0, 1.0, (2,))
    action_space = Box(-1.0, 1.0, (1,))


def contract_of(monkeypatch: pytest.MonkeyPatch, env: gymnasium.Env):
    monkeypatch.setattr(module.gymnasium, "make", lambda _: env)
    contract = environment(Config(env="mine")).contract
    return [channel.name for channel in contract.observation + contract.action], contract.control_hz


def test_an_environments_own_names_and_rate_reach_the_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    assert contract_of(monkeypatch, Named()) == (["angle", "speed", "hinge"], 40.0)


def test_channels_of_one_that_has_no_names_are_numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    assert contract_of(monkeypatch, Nameless()) == (["obs[0]", "obs[1]", "action[0]"], None)


def test_an_unknown_task_of_the_suite_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"'dmc/pole-up': unknown task; known are: .*dmc/cartpole-swingup") as caught:
        environment(Config(env="dmc/pole-up"))
    assert all(f"dmc/{task}" in str(caught.value) for task in DMC_TASKS)


def test_a_suite_that_is_not_installed_is_named_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sim.registration.util.find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=r"dm-control is not installed; pip install 'edge-sac\[dmc\]'"):
        environment(Config(env="dmc/cartpole-swingup"))


@pytest.mark.skipif(suite_available() != "ok", reason="needs dm_control: pip install 'edge-sac[dmc]'")
def test_a_task_of_the_suite_brings_its_names_and_rate() -> None:
    where = environment(Config(env="dmc/cartpole-swingup"))
    assert [channel.name for channel in where.contract.observation[1:4]] == [
        "position[1]",
        "position[2]",
        "velocity[0]",
    ]
    assert [channel.name for channel in where.contract.action] == ["slide"]
    assert where.contract.control_hz == pytest.approx(100.0)
    assert where.contract.robot == "dmc/cartpole-swingup"
