"""A user's mistake is answered by one line that names value and remedy, exit code 2, and changes nothing."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import onnx
import pytest

import robots
from edge_sac.checkpoint import checkpoint_steps
from edge_sac.commands import train as train_module
from edge_sac.replay import Replay

FURUTA = (Path(robots.__file__).parent / "furuta.toml").read_text(encoding="utf-8")


class Odd(gymnasium.Env[Any, Any]):
    """A point whose spaces and numbers can be spoilt; `bad_step` counts over all instances."""

    steps = 0

    def __init__(self, action: Any = None, observation: Any = None, bad_step: int = -1, bad: float = np.nan) -> None:
        self.action_space = action or gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.observation_space = observation or gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.bad_step, self.bad, self.count = bad_step, bad, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.count = 0
        return self.np_random.uniform(size=2), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        Odd.steps += 1
        self.count += 1
        obs = self.np_random.uniform(size=2)
        if Odd.steps == self.bad_step:
            obs[1] = self.bad
        return obs, float(obs[0]), False, self.count >= 20, {}


@pytest.fixture
def odd() -> Iterator[Callable[..., str]]:
    """Return a function that registers an environment with these spaces and faults and gives its id."""

    def register(**settings: Any) -> str:
        Odd.steps = 0
        gymnasium.register("Odd-v0", entry_point=Odd, kwargs=settings, disable_env_checker=True)
        return "Odd-v0"

    yield register
    gymnasium.registry.pop("Odd-v0", None)


@pytest.fixture
def refused(call: Any, workplace: Path, snapshot: Any) -> Callable[..., str]:
    """Return a function that calls the program, checks that it refuses without a trace, and gives the line it says."""

    def check(*arguments: object) -> str:
        before = snapshot(workplace)
        answer = call(*arguments)
        assert answer.code == 2, answer
        lines = answer.err.splitlines()
        assert len(lines) == 1, answer.err
        assert lines[0].startswith("edge-sac: ")
        assert snapshot(workplace) == before
        return str(lines[0])

    return check


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["nosuch"], ["'nosuch'", "furuta", ".toml"], id="unknown robot"),
        pytest.param(["nosuch.toml"], ["nosuch.toml"], id="robot file that is not there"),
        pytest.param(["x" * 300], ["xxx"], id="robot with an impossible name"),
        pytest.param([""], ["''"], id="robot without a name"),
        pytest.param(["--env", "NoSuch-v0"], ["NoSuch-v0"], id="unknown environment"),
        pytest.param(["--env", "no_such_module:Env-v0"], ["no_such_module"], id="environment of a missing module"),
        pytest.param(["--env", ""], ["--env", "Pendulum-v1"], id="environment without a name"),
        pytest.param(["--env", "CartPole-v1"], ["CartPole-v1", "Discrete(2)", "Box"], id="discrete actions"),
        pytest.param(["furuta", "--env", "Pendulum-v1"], ["furuta", "Pendulum-v1", "one"], id="robot and environment"),
        pytest.param(["--steps", "0"], ["steps", "0", ">= 1"], id="zero steps"),
        pytest.param(["--steps", "abc"], ["--steps", "integer"], id="steps that are no number"),
        pytest.param(["--seed", "-1"], ["seed", "-1"], id="negative seed"),
        pytest.param(["--precision", "fp8"], ["'fp8'", "fp16"], id="unknown precision"),
        pytest.param(["--target", "hard"], ["'hard'", "target"], id="unknown target"),
        pytest.param(["--physics", "real"], ["'real'", "physics"], id="unknown physics"),
        pytest.param(["--device", "tpu"], ["'tpu'", "device"], id="unknown device"),
        pytest.param(["--bogus"], ["--bogus"], id="unknown option"),
        pytest.param(["--config", "none.toml"], ["none.toml"], id="configuration that is not there"),
        pytest.param(["--config", "."], ["cannot read"], id="configuration that is a folder"),
        pytest.param(["--config", "x" * 300], ["too long"], id="configuration with an impossible name"),
        pytest.param(["--out", "x" * 300], ["too long"], id="folder with an impossible name"),
        pytest.param(["--out", "tiny.toml"], ["tiny.toml", "--out"], id="folder that is a file"),
        pytest.param(["--out", "tiny.toml/run"], ["tiny.toml/run", "--out"], id="folder inside a file"),
        pytest.param(["--out", "/proc/run"], ["/proc/run", "--out"], id="folder that cannot be made"),
    ],
)
def test_bad_argument_of_train(refused: Any, arguments: list[str], words: list[str]) -> None:
    line = refused("train", *arguments)
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        pytest.param(["trian"], ["'trian'"], id="unknown command"),
        pytest.param(["resume"], ["Missing argument"], id="resume nothing"),
        pytest.param(["resume", "none"], ["none", "not a run"], id="resume what is not there"),
        pytest.param(["resume", "none", "--steps", "0"], ["--steps", "1"], id="resume for zero steps"),
        pytest.param(["resume", "."], ["not a run"], id="resume a folder without a run"),
        pytest.param(["eval", "none.onnx"], ["none.onnx", "does not exist"], id="judge what is not there"),
        pytest.param(["eval", "."], ["not a run"], id="judge a folder without a run"),
        pytest.param(["eval", "tiny.toml"], ["tiny.toml", "ONNX"], id="judge what is no policy"),
        pytest.param(["eval", "tiny.toml", "--episodes", "0"], ["--episodes"], id="judge by no episode"),
        pytest.param(["eval", "x" * 300], ["too long"], id="judge an impossible name"),
        pytest.param(["resume", "x" * 300], ["too long"], id="resume an impossible name"),
        pytest.param(["export", "none"], ["none", "not a run"], id="export what is not there"),
        pytest.param(["reproduce", "everything"], ["'everything'", "furuta"], id="reproduce an unknown table"),
    ],
)
def test_bad_argument_of_another_command(refused: Any, arguments: list[str], words: list[str]) -> None:
    line = refused(*arguments)
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("stepz = 3", ["my.toml", "`stepz`", "steps"], id="unknown key"),
        pytest.param("steps = 1e", ["my.toml", "TOML"], id="not TOML"),
        pytest.param("[agent]\nactor_lr = inf", ["my.toml", "actor_lr", "inf"], id="infinite rate"),
        pytest.param("precision = 'fp8'", ["'fp8'"], id="unknown precision"),
        pytest.param("robot = '../x'", ["../x", "furuta"], id="unknown robot"),
    ],
)
def test_bad_configuration_file(refused: Any, text: str, words: list[str], workplace: Path) -> None:
    (workplace / "my.toml").write_text(text, encoding="utf-8")
    line = refused("train", "--config", "my.toml")
    for word in words:
        assert word in line


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "-1.0", "0.0", "'40'"])
@pytest.mark.parametrize("key", ["speed", "torque"])
def test_limit_of_a_robot_that_limits_nothing(refused: Any, key: str, value: str, workplace: Path) -> None:
    given = {"speed": "speed = 40.0 ", "torque": "torque = 0.03 "}[key]
    assert given in FURUTA
    (workplace / "bad.toml").write_text(FURUTA.replace(given, f"{key} = {value} "), encoding="utf-8")
    line = refused("train", "bad.toml")
    for word in (f"{key}", value.strip("'").removesuffix(".0"), "bad.toml"):
        assert word in line


def test_robot_file_with_an_unknown_key(refused: Any, workplace: Path) -> None:
    (workplace / "bad.toml").write_text(f"colour = 'red'\n{FURUTA}", encoding="utf-8")
    assert "colour" in refused("train", "bad.toml")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        pytest.param({"action": gymnasium.spaces.MultiDiscrete([2])}, ["action space", "MultiDiscrete"], id="discrete"),
        pytest.param({"action": gymnasium.spaces.Box(0, 9, (1,), np.int32)}, ["continuous", "int32"], id="whole"),
        pytest.param({"action": gymnasium.spaces.Box(-np.inf, 1, (1,))}, ["finite bounds", "inf"], id="unbounded"),
        pytest.param({"action": gymnasium.spaces.Box(1, 1, (1,))}, ["action[0]", "1"], id="nothing to choose"),
        pytest.param({"observation": gymnasium.spaces.Box(0, 1, (2, 2))}, ["observation space"], id="a matrix"),
        pytest.param(
            {"observation": gymnasium.spaces.Dict(a=gymnasium.spaces.Box(0, 1))},
            ["observation space", "Dict"],
            id="a dictionary",
        ),
        pytest.param({"bad_step": 7}, ["step 7", "'obs[1]' is nan"], id="a NaN before the run"),
        pytest.param({"non\nsense": 7}, ["Odd-v0", "TypeError", "non sense"], id="its constructor raises two lines"),
    ],
)
def test_environment_that_cannot_be_trained_on(
    refused: Any, odd: Any, settings: dict[str, Any], words: list[str]
) -> None:
    line = refused("train", "--config", "tiny.toml", "--env", odd(**settings))
    for word in words:
        assert word in line


def test_folder_that_holds_a_run_or_anything_else_is_not_touched(refused: Any, finished: Path, workplace: Path) -> None:
    assert f"edge-sac resume {finished}" in refused("train", "--config", "tiny.toml", "--out", finished)
    (workplace / "mine").mkdir()
    (workplace / "mine" / "notes.txt").write_text("mine", encoding="utf-8")
    assert "not an empty folder" in refused("train", "--out", "mine")


@pytest.mark.parametrize("name", ["tensors.safetensors", "checkpoint.json"])
@pytest.mark.parametrize("how", ["cut short", "one bit changed", "deleted", "empty"])
def test_damaged_checkpoint(refused: Any, finished: Path, name: str, how: str) -> None:
    newest = checkpoint_steps(finished)[-1]
    path = finished / "checkpoints" / str(newest) / name
    data = bytearray(path.read_bytes())
    if how == "deleted":
        path.unlink()
    else:
        data[len(data) // 2] ^= 1
        path.write_bytes({"cut short": data[:-20], "one bit changed": data, "empty": b""}[how])
    for command in (("resume", finished), ("resume", finished, "--steps", 5), ("export", finished, "-o", "out.onnx")):
        line = refused(*command)
        assert name in line
        assert "delete" in line


def test_run_whose_own_files_are_damaged(refused: Any, finished: Path) -> None:
    (finished / "start.json").write_bytes(b"{")
    assert "start.json is damaged" in refused("resume", finished)
    (finished / "start.json").unlink()
    assert "not a run folder" in refused("resume", finished)


def test_replay_of_another_run_is_refused(refused: Any, finished: Path) -> None:
    path = finished / "replay" / "transitions.map"
    path.write_bytes(path.read_bytes()[:5000])
    assert "transitions.map" in refused("resume", finished, "--steps", 5)
    path.unlink()
    replay = Replay(5000, 3, 1, path=path)
    replay.add(np.zeros(3), np.zeros(1), 0.0, True, False, np.zeros(3))
    replay.close()
    assert "belongs to another run" in refused("resume", finished, "--steps", 5)


def test_deleted_replay_is_said_and_the_run_goes_on(call: Any, finished: Path) -> None:
    (finished / "replay" / "transitions.map").unlink()
    answer = call("resume", finished, "--steps", 5)
    assert answer.code == 0
    assert "the replay is gone, and 400 transitions with it" in answer.out


def test_policy_that_does_not_fit(refused: Any, trained: Path, workplace: Path) -> None:
    shutil.copy(trained / "pendulum" / "policy.onnx", workplace / "pendulum.onnx")
    shutil.copy(trained / "furuta" / "policy.onnx", workplace / "furuta.onnx")
    line = refused("eval", "pendulum.onnx", "--robot", "furuta")
    for word in ("Pendulum-v1 does not fit furuta", "kind", "names", "obs[0]"):
        assert word in line
    (workplace / "slow.toml").write_text(FURUTA.replace("control_hz = 50.0", "control_hz = 25.0"), encoding="utf-8")
    line = refused("eval", "furuta.onnx", "--robot", "slow.toml")
    assert "control_hz: policy 50 (within 5), robot 25" in line
    assert "unknown physics" in refused("eval", "furuta.onnx", "--physics", "unknown physics")


@pytest.mark.parametrize("how", ["garbage", "cut short", "without contract", "empty"])
def test_damaged_policy(refused: Any, trained: Path, workplace: Path, how: str) -> None:
    path = workplace / "policy.onnx"
    data = (trained / "furuta" / "policy.onnx").read_bytes()
    if how == "without contract":
        model = onnx.load_from_string(data)
        del model.metadata_props[:]
        data = model.SerializeToString()
    path.write_bytes({"garbage": b"\x08" + os.urandom(3000), "cut short": data[:-700], "empty": b""}.get(how, data))
    assert "policy.onnx" in refused("eval", path)


def test_result_that_cannot_be_written_is_refused_before_the_episodes(
    refused: Any, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge_sac.commands.evaluate.judge", lambda *_: pytest.fail("driven"))
    for output in ("no/such/result.json", "."):
        assert f"cannot write {output}" in refused("eval", trained / "furuta", "--json", output)


def test_policy_file_that_cannot_be_written(refused: Any, finished: Path) -> None:
    for output in ("no/such/policy.onnx", "."):
        assert "not written" in refused("export", finished, "-o", output)


@pytest.mark.usefixtures("undelivered")
def test_export_of_a_run_that_has_not_begun(call: Any, refused: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edge_sac.trainer.Trainer._train_episode", lambda *_: signal.raise_signal(signal.SIGINT))
        answer = call("train", "--config", "tiny.toml", "--out", "run")
    assert answer.code == 130
    assert "Saved at step 0." in answer.out
    line = refused("export", "run")
    assert "not seen a single step" in line
    assert "resume run" in line
    assert "edge-sac export run" in refused("eval", "run")
    assert call("resume", "run").code == 0


@pytest.fixture
def undelivered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the policy's judgement at a run's end."""
    monkeypatch.setattr(train_module, "deliver", lambda *_: 0)


@pytest.mark.parametrize(
    ("module", "arguments", "line"),
    [
        ("torch", ["train"], "pip install 'edge-sac[train]'"),
        ("tensorboard", ["resume", "run"], "pip install 'edge-sac[train]'"),
        ("safetensors", ["export", "run"], "pip install 'edge-sac[train]'"),
        ("onnxruntime", ["eval", "policy.onnx"], "pip install 'edge-sac[cpu]'"),
        ("pybullet", ["train", "--physics", "pybullet"], "pip install 'edge-sac[sim]'"),
    ],
)
def test_missing_extra_is_named_with_the_line_that_installs_it(
    refused: Any, module: str, arguments: list[str], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == module else find(name, *rest))
    said = refused(*arguments)
    assert line in said
    assert module in said.lower()


@pytest.mark.usefixtures("undelivered")
@pytest.mark.parametrize(("bad", "shown"), [(np.nan, "nan"), (-np.inf, "-inf"), (1e300, "1e+300")])
def test_nan_of_an_environment_stops_the_run_by_step_and_name_after_saving(
    call: Any, odd: Any, bad: float, shown: str
) -> None:
    env = odd(bad_step=952 + 150, bad=bad)  # 952 steps are looked at before the run
    answer = call("train", "--env", env, "--config", "tiny.toml", "--out", "run")
    assert answer.code == 3, answer
    assert answer.err == f"edge-sac: step 149: observation 'obs[1]' is {shown}\n"
    assert "Saved at step 149. Go on with: " in answer.out
    assert checkpoint_steps(Path("run"))[-1] == 149
    assert call("resume", "run").code == 0


@pytest.mark.usefixtures("undelivered")
def test_reading_of_a_robot_that_is_no_number_stops_the_run_by_step_and_name(
    call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sim.equations_robot import EquationsRobot

    read, count = EquationsRobot.read, 0

    def spoilt(robot: EquationsRobot) -> Any:
        nonlocal count
        state = read(robot)
        count += 1
        if count == 120:
            state.position[1] = np.nan
        return state

    monkeypatch.setattr(EquationsRobot, "read", spoilt)
    answer = call("train", "--config", "tiny.toml", "--out", "run")
    assert answer.code == 3, answer
    (line,) = answer.err.splitlines()
    assert "stopped at step 119: " in line
    assert "pendulum" in line
    assert "nan" in line
    assert "Saved at step 119." in answer.out
    assert call("resume", "run").code == 0


@pytest.fixture
def small_disk(workplace: Path) -> Iterator[Path]:
    """Return a disk of 2 MiB."""
    disk = workplace / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("needs the right to mount a small disk")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def test_disk_too_small_for_a_run_is_refused_and_left_empty(call: Any, small_disk: Path) -> None:
    answer = call("train", "--out", "disk/runs/run")
    assert answer.code == 2, answer
    (line,) = answer.err.splitlines()
    assert "transitions" in line
    assert "free" in line
    assert list(small_disk.iterdir()) == []


@pytest.mark.usefixtures("undelivered")
def test_disk_that_fills_up_stops_the_run_and_leaves_what_was_saved(
    call: Any, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from robots.env import RobotEnv

    step, count = RobotEnv.step, 0

    def fill(env: RobotEnv, action: Any) -> Any:
        nonlocal count
        count += 1
        if count == 150:
            disk = os.statvfs(small_disk)
            (small_disk / "ballast").write_bytes(bytes(disk.f_bavail * disk.f_frsize))
        return step(env, action)

    monkeypatch.setattr(RobotEnv, "step", fill)
    answer = call("train", "--config", "tiny.toml", "--out", "disk/run")
    assert answer.code == 3, answer
    (line,) = answer.err.splitlines()
    assert "make room, then resume" in line
    assert checkpoint_steps(small_disk / "run") == [0]
    (small_disk / "ballast").unlink()
    answer = call("resume", "disk/run")
    assert answer.code == 0, answer
    assert "newer transitions kept" in answer.out


def test_reader_of_the_output_that_goes_away_does_not_end_the_run(start: Any) -> None:
    child = start("train", "--config", "tiny.toml", "--env", "Pendulum-v1", "--out", "run")
    child.process.stdout.close()
    child.process.stdout = None
    answer = child.end()
    assert answer.code == 0, answer.err
    assert answer.err == ""
    assert checkpoint_steps(Path("run"))[-1] >= 300


def test_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(train_module, "resume", broken)
    monkeypatch.setattr("sys.argv", ["edge-sac", "resume", "run"])
    from edge_sac.cli import main

    with pytest.raises(ZeroDivisionError):
        main()
