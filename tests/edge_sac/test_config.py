"""A configuration is read whole, refused by name, and written so that it reads back equal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edge_sac.config import AgentConfig, Config, dump_config, load_config, parse_config
from edge_sac.errors import ConfigError


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(Config(), id="defaults"),
        pytest.param(
            Config(
                env='od"d/Env-v0',
                physics="equations",
                precision="fp32",
                target="kahan",
                kahan_actor=False,
                seed=2**63 - 1,
                steps=1,
                updates_per_step=0.25,
                checkpoint_seconds=1e-3,
                agent=AgentConfig(hidden=(1,), batch=1, actor_lr=1e9, gamma=1e-300, eps=5e-324),
            ),
            id="everything at an end of its range",
        ),
    ],
)
def test_written_configuration_reads_back_equal(config: Config) -> None:
    assert parse_config(dump_config(config), "it") == config


def test_written_configuration_is_complete_but_for_what_is_absent() -> None:
    import tomli

    written = tomli.loads(dump_config(Config()))
    assert set(written) == set(Config.__struct_fields__) - {"kahan_actor"}
    assert set(written["agent"]) == set(AgentConfig.__struct_fields__)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("step = 3", ["`step`", "known keys", "steps", "replay_capacity"], id="unknown key"),
        pytest.param("[agent]\nlr = 3.0", ["`lr`", "agent", "known keys", "actor_lr"], id="unknown key of a section"),
        pytest.param("[learner]\nlr = 3.0", ["`learner`", "known keys"], id="unknown section"),
        pytest.param("steps = 0", ["steps", ">= 1", "got 0"], id="zero steps"),
        pytest.param("steps = -7", ["steps", ">= 1", "got -7"], id="negative"),
        pytest.param("steps = 10.5", ["steps", "int", "got 10.5"], id="a fraction for a count"),
        pytest.param("steps = true", ["steps", "int", "got True"], id="a boolean for a count"),
        pytest.param("steps = '10'", ["steps", "int", "got '10'"], id="a string for a count"),
        pytest.param("seed = 9223372036854775808", ["seed", "got 9223372036854775808"], id="beyond 64 bits"),
        pytest.param("robot = 3", ["robot", "str", "got 3"], id="a number for a name"),
        pytest.param("agent = 3", ["agent", "object", "got 3"], id="a number for a section"),
        pytest.param("updates_per_step = nan", ["updates_per_step", "got nan"], id="NaN"),
        pytest.param("updates_per_step = inf", ["updates_per_step", "got inf"], id="infinity"),
        pytest.param("[agent]\nactor_lr = nan", ["agent.actor_lr", "got nan"], id="NaN in a section"),
        pytest.param("[agent]\ntau = -inf", ["agent.tau", "got -inf"], id="minus infinity"),
        pytest.param("[agent]\ngamma = 1.0", ["agent.gamma", "< 1", "got 1.0"], id="excluded end"),
        pytest.param("[agent]\nhidden = []", ["agent.hidden", "got []"], id="no layers"),
        pytest.param("[agent]\nhidden = [16, 0]", ["agent.hidden", "got [16, 0]"], id="an empty layer"),
        pytest.param("physics = 'real'", ["physics", "'real'"], id="unknown choice"),
        pytest.param("steps = 1\nsteps = 2", ["not TOML", "overwrite"], id="key given twice"),
        pytest.param("\x00", ["not TOML"], id="binary"),
        pytest.param("a = " + "[" * 5000, ["not TOML"], id="nested without end"),
    ],
)
def test_refusal_names_file_key_value_and_what_was_expected(text: str, words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(text, "my.toml")
    message = str(caught.value)
    assert message.startswith("my.toml")
    for word in words:
        assert word in message


def test_overrides_lie_over_the_file_and_leave_the_rest() -> None:
    config = parse_config("steps = 5\nseed = 3", "my.toml", {"steps": 9, "env": "Pendulum-v1"})
    assert (config.steps, config.seed, config.env) == (9, 3, "Pendulum-v1")


@pytest.mark.parametrize("override", [{"steps": 0}, {"physics": "real"}, {"nonsense": 1}])
def test_bad_override_blames_the_command_line_and_not_the_file(override: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^command line: "):
        parse_config("seed = 3", "my.toml", override)


def test_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"robot = '\xe9'")
    for path in (tmp_path / "missing.toml", tmp_path, latin):
        with pytest.raises(ConfigError, match=str(path)):
            load_config(path)
