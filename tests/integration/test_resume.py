"""A run goes on after whatever ended it: equal to one that was never stopped, or with every completed transition."""

from __future__ import annotations

import importlib.util
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from edge_sac.agent import Agent
from edge_sac.checkpoint import checkpoint_steps, load_checkpoint
from edge_sac.commands import build
from edge_sac.commands import train as train_module
from edge_sac.commands.stop_signals import GRACE_S
from edge_sac.replay import Replay
from edge_sac.replay_row import STEP
from edge_sac.run_folder import read_run
from edge_sac.threads import Threads
from robots.env import RobotEnv

PHYSICS = ["equations"] + ["pybullet"] * (importlib.util.find_spec("pybullet") is not None)
JOURNAL = '''
"""A point on a line that writes every completed step down before it returns it."""
import os

import gymnasium
import numpy as np

LENGTH = int(os.environ.get("LENGTH", "20"))


class Journal(gymnasium.Env):
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    observation_space = gymnasium.spaces.Box(-1e4, 1e4, (1,), np.float32)

    def __init__(self):
        self.file = os.open("journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.writes = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count, self.at = 0, np.float32(self.np_random.uniform(0, 100))
        return np.array([self.at], np.float32), {}

    def step(self, action):
        self.count += 1
        self.at = np.float32(self.np_random.uniform(0, 100))
        os.write(self.file, np.float16(self.at).tobytes())
        return np.array([self.at], np.float32), float(action[0]), False, self.count >= LENGTH, {}

    def close(self):
        os.close(self.file)


gymnasium.register(id="Journal-v0", entry_point=Journal)
'''
ENDLESS = """
steps = 1000000
random_steps = 100
eval_every = 1000000000
replay_capacity = 2000000
updates_per_step = 0.05
checkpoint_seconds = 0.3
env = "journal_env:Journal-v0"

[agent]
hidden = [8]
batch = 8
"""


@pytest.fixture
def endless(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return the settings of a run that only a signal ends, its environment beside it."""
    (workplace / "journal_env.py").write_text(JOURNAL, encoding="utf-8")
    (workplace / "endless.toml").write_text(ENDLESS, encoding="utf-8")
    monkeypatch.syspath_prepend(workplace)
    monkeypatch.delitem(sys.modules, "journal_env", raising=False)
    yield Path("endless.toml")
    gymnasium.registry.pop("Journal-v0", None)


@pytest.fixture
def signal_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, signal.Signals], None]:
    """Return a function that sends this process a signal once the Furuta twin has made some steps more."""
    step = RobotEnv.step
    waiting: dict[str, int] = {}

    def counted(env: RobotEnv, action: Any) -> Any:
        waiting["steps"] = waiting.get("steps", 0) - 1
        if waiting["steps"] == 0:
            signal.raise_signal(waiting["signal"])
        return step(env, action)

    monkeypatch.setattr(RobotEnv, "step", counted)
    return lambda steps, number: waiting.update(steps=steps, signal=number)


@pytest.fixture
def hangup() -> Iterator[None]:
    """Give SIGHUP its default meaning, which nohup takes away from whatever runs the tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def undelivered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the policy's judgement at a run's end, which is most of the time of so short a run."""
    monkeypatch.setattr(train_module, "deliver", lambda *_: 0)


@pytest.mark.usefixtures("undelivered", "hangup")
@pytest.mark.parametrize("physics", PHYSICS)
def test_a_run_stopped_by_each_signal_and_resumed_equals_one_never_stopped(
    call: Any, outcome: Any, signal_at: Any, robot: Path, physics: str
) -> None:
    train = ("train", robot, "--config", "tiny.toml", "--physics", physics, "--steps", 550)
    assert call(*train, "--out", "whole").code == 0
    for number, command in (
        (signal.SIGINT, (*train, "--out", "parts")),
        (signal.SIGTERM, ("resume", "parts")),
        (signal.SIGHUP, ("resume", "parts")),
    ):
        signal_at(30, number)
        answer = call(*command)
        assert answer.code == 130
        step = checkpoint_steps(Path("parts"))[-1]
        assert f"Saved at step {step}. Go on with: /somewhere/bin/edge-sac resume parts" in answer.out
        assert "Stopping with the episode" in answer.err
    assert call("resume", "parts").code == 0
    outcome(Path("whole")).check_equal(outcome(Path("parts")))


@pytest.mark.usefixtures("undelivered", "hangup")
def test_a_lost_terminal_that_nohup_hides_does_not_stop_a_run(call: Any, signal_at: Any) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal_at(30, signal.SIGHUP)
    assert call("train", "--config", "tiny.toml", "--steps", 100).code == 0


@pytest.mark.usefixtures("undelivered")
def test_a_finished_run_trained_further_equals_a_longer_one(call: Any, outcome: Any, robot: Path) -> None:
    assert call("train", robot, "--config", "tiny.toml", "--out", "parts").code == 0
    first = checkpoint_steps(Path("parts"))[-1]
    assert call("resume", "parts", "--steps", 250).code == 0
    steps = read_run(Path("parts"))[0].steps
    assert steps == first + 250
    assert call("train", robot, "--config", "tiny.toml", "--steps", steps, "--out", "whole").code == 0
    whole, parts = outcome(Path("whole")), outcome(Path("parts"))
    # The shorter run ended with a row of its own; all else is equal.
    own = [record for record in parts.records if record[:2] == (str(first), "train")]
    assert len(own) == (first % 500 != 0)
    parts.records[:] = [record for record in parts.records if record not in own]
    whole.check_equal(parts)


def test_a_finished_run_is_shown_and_its_checkpoint_stays_as_it_is(call: Any, finished: Path, outcome: Any) -> None:
    before = outcome(finished)
    answer = call("resume", finished)
    assert answer.code == 0
    assert "run is finished, at step" in answer.out
    assert "edge-sac eval run/policy.onnx" in answer.out
    before.check_equal(outcome(finished))


def test_a_child_stops_by_ctrl_c_and_refuses_a_second_process_while_it_runs(
    start: Any, call: Any, endless: Path
) -> None:
    child = start("train", "--config", endless, "--out", "run")
    child.wait_for("step 500/")
    before = Path("run/config.toml").read_bytes()
    for arguments, words in (
        (("resume", "run", "--steps", 5), "another process is using this replay"),
        (("train", "--config", endless, "--out", "run"), "holds a run"),
    ):
        answer = call(*arguments)
        assert answer.code == 2
        assert words in answer.err
        assert len(answer.err.splitlines()) == 1
    assert Path("run/config.toml").read_bytes() == before
    child.process.send_signal(signal.SIGINT)
    answer = child.end()
    assert answer.code == 130, answer.err
    step = checkpoint_steps(Path("run"))[-1]
    assert step % 20 == 0
    assert re.search(rf"Saved at step {step}\. Go on with: \S+ -m edge_sac resume run$", answer.out.strip())
    assert "Traceback" not in answer.err


def test_a_second_ctrl_c_stops_within_an_episode_that_would_not_end(
    start: Any, endless: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LENGTH", "1000000000")
    child = start("train", "--config", endless, "--out", "run")
    child.wait_for("step 500/")
    began = time.monotonic()
    child.process.send_signal(signal.SIGINT)
    child.wait_for("once more stops at once", "stderr")
    assert child.process.poll() is None
    child.process.send_signal(signal.SIGINT)
    answer = child.end()
    # After so long it would have stopped without the second.
    assert time.monotonic() - began < GRACE_S
    assert answer.code == 130, answer.err
    assert f"Saved at step {checkpoint_steps(Path('run'))[-1]}" in answer.out


@pytest.mark.usefixtures("undelivered")
def test_after_kill_9_every_completed_transition_is_there_and_the_loss_is_told(
    start: Any, call: Any, endless: Path
) -> None:
    rng = np.random.default_rng(0)
    child = start("train", "--config", endless, "--out", "run")
    for _ in range(2):
        child.wait_for("/1000000  ")
        # A random moment: of an episode, an update or a save.
        select.select([], [], [], rng.uniform(0, 0.7))
        child.process.kill()
        assert child.end().code == -signal.SIGKILL
        expected = words_of_loss(Path("run"))
        child = start("resume", "run")
        assert expected in child.wait_for("resumed at step", then=expected)
    child.process.kill()
    child.end()
    # Of the 1,000 observations looked at before a run every 21st is a reset's; the other steps are not the run's.
    journal = np.frombuffer(Path("journal").read_bytes(), np.float16)[1000 - 48 :]
    kept = observations_after_steps(Path("run"))
    # One step of each process may have been under way when it was killed.
    assert 0 <= len(journal) - len(kept) <= 3
    assert is_subsequence(kept, journal)
    text = Path("run/config.toml").read_text(encoding="utf-8").replace("steps = 1000000\n", "steps = 1\n")
    Path("run/config.toml").write_text(text, encoding="utf-8")
    assert call("resume", "run", "--steps", 20).code == 0
    assert len(observations_after_steps(Path("run"))) == len(kept) + 20


def words_of_loss(run: Path) -> str:
    """Return what resuming must say of the transitions that are newer than the last checkpoint; nothing of none."""
    _, _, state = load_checkpoint(run)
    newer = len(observations_after_steps(run)) - state["replay"]["added"]
    assert newer >= 0
    # Updates begin with the 100th step, one in 20.
    learned = min(newer, max(0, state["counters"]["step"] + newer - 99))
    lost = f"{newer} newer transitions kept, about {round(0.05 * learned)} updates lost"
    return f"the last process was killed: {lost}" if newer else ""


def observations_after_steps(run: Path) -> Any:
    """Return the observation that followed each transition of the run's replay, in order."""
    with closing(Replay(2_000_000, 1, 1, path=run / "replay" / "transitions.map")) as replay:
        rows = replay.read(0, replay.state()["written"])
    return rows.obs[rows.kind >= STEP, 0].astype(np.float16)


def is_subsequence(part: Any, whole: Any) -> bool:
    rest = iter(whole.tolist())
    return all(value in rest for value in part.tolist())


@pytest.mark.usefixtures("undelivered")
def test_a_resumed_run_whose_robot_has_changed_is_refused_and_goes_on_when_it_is_put_back(
    call: Any, robot: Path, snapshot: Any
) -> None:
    text = robot.read_text(encoding="utf-8")
    assert call("train", robot, "--config", "tiny.toml").code == 0
    run = Path("runs/mine")
    assert Path(read_run(run)[0].robot) == robot.absolute()
    robot.write_text(text.replace("torque = 0.03 ", "torque = 0.04 "), encoding="utf-8")
    before = snapshot(run)
    answer = call("resume", run, "--steps", 100)
    assert answer.code == 2
    assert "limits.arm.torque: policy 0.03, robot 0.04" in answer.err
    assert snapshot(run) == before
    robot.write_text(text, encoding="utf-8")
    assert call("resume", run, "--steps", 1).code == 0


@pytest.mark.usefixtures("undelivered")
def test_resume_or_show_trains_then_shows_and_never_goes_on_with_other_settings(call: Any, snapshot: Any) -> None:
    again = ("train", "--config", "tiny.toml", "--resume-or-show")
    assert call(*again).code == 0
    assert "runs/furuta is finished" in call(*again).out
    assert "runs/furuta is finished" in call(*again, "--physics", "auto", "--seed", 0).out
    before = snapshot(Path("runs"))
    for option, value, found in (("--seed", 1, 0), ("--steps", 9000, 300), ("--precision", "fp32", "fp16")):
        answer = call(*again, option, value)
        assert answer.code == 2
        assert f"{option[2:]} {found!r}, not {value!r}" in answer.err
    assert call("train", "--resume-or-show").code == 0
    assert snapshot(Path("runs")) == before


@pytest.mark.usefixtures("undelivered")
def test_a_run_killed_right_after_its_folder_was_made_begins_by_resume(call: Any) -> None:
    def killed(*_: object) -> None:
        raise SystemExit(137)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("edge_sac.commands.build._trainer", killed)
        patch.setattr("edge_sac.run_folder._empty", lambda _run: None)
        assert call("train", "--config", "tiny.toml", "--out", "run").code == 137
    assert sorted(path.name for path in Path("run").iterdir()) == ["config.toml", "start.json"]
    assert call("resume", "run").code == 0
    assert checkpoint_steps(Path("run"))[-1] >= 300


def test_a_resumed_run_whose_twin_has_changed_is_refused(workplace: Path, call: Any) -> None:
    from importlib import resources

    text = resources.files("robots").joinpath("furuta.toml").read_text()
    mine = workplace / "mine.toml"
    mine.write_text(text)
    settings = workplace / "tiny.toml"
    settings.write_text(
        f'robot = "{mine}"\nphysics = "equations"\nsteps = 20\nrandom_steps = 10\nreplay_capacity = 1000\n'
        "[agent]\nhidden = [8]\nbatch = 8\n"
    )
    assert call("train", "--config", settings, "--out", "twin").code == 0
    mine.write_text(text.replace("resistance = 8.4", "resistance = 80.4"))
    refused = call("resume", "twin", "--steps", "20")
    assert refused.code == 2
    assert "no longer what the run began with" in refused.err
    mine.write_text(text)
    assert call("resume", "twin", "--steps", "20").code == 0


def test_number_of_threads_is_chosen_once_and_told_and_goes_with_the_run(
    call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "probe_threads", lambda *_: Threads(2, "two were faster"))
    text = Path("tiny.toml").read_text(encoding="utf-8").replace("threads = 1\n", "")
    Path("probed.toml").write_text(text, encoding="utf-8")
    first = call("train", "--config", "probed.toml", "--steps", 110, "--out", "run")
    assert (first.code, torch.get_num_threads()) == (0, 2)
    assert "2 thread(s), chosen at the run's start: two were faster" in first.out
    monkeypatch.setattr(build, "probe_threads", lambda *_: pytest.fail("probed again"))
    torch.set_num_threads(1)
    again = call("resume", "run", "--steps", 10)
    assert (again.code, torch.get_num_threads()) == (0, 2)
    assert "2 thread(s), chosen at the run's start: two were faster" in again.out


def test_memory_that_runs_out_on_the_way_is_answered_with_what_to_shrink_and_the_run_is_saved(
    call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, made = Agent.update, []

    def update(agent: Agent, batch: Any) -> None:
        made.append(agent)
        if len(made) == 20:
            raise RuntimeError("CUDA error: out of memory\nCUDA kernel errors might be reported elsewhere")
        whole(agent, batch)

    monkeypatch.setattr(Agent, "update", update)
    answer = call("train", "--config", "tiny.toml", "--out", "run")
    assert answer.code == 3
    assert "stopped at step 139: out of memory on cpu (CUDA error: out of memory): close" in answer.err
    assert "Saved at step 139" in answer.out.replace("\n", " ")
    assert call("resume", "run").code == 0


def test_memory_that_does_not_suffice_at_the_start_is_refused_and_leaves_nothing(
    call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise MemoryError("Unable to allocate 1 GiB")

    monkeypatch.setattr(build, "Agent", full)
    answer = call("train", "--config", "tiny.toml", "--out", "run")
    assert answer.code == 2
    assert "lower replay_capacity (5000: " in answer.err
    assert not Path("run").exists()
