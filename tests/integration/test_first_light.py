"""One command leads from nothing to a policy, and every line it prints is true."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from edge_sac.commands import train as train_module
from edge_sac.policy import Policy

PATIENCE_S = 60.0


def run(line: str, folder: Path, **settings: Any) -> subprocess.CompletedProcess[str]:
    """Return what a printed line does when it is pasted into a shell."""
    return subprocess.run(
        line, shell=True, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False, **settings
    )


def test_every_file_is_there_and_every_printed_line_works_when_pasted(
    start: Any, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import edge_sac

    answer = start("train", "--env", "Pendulum-v1", "--config", "tiny.toml", "--out", "my runs/a [b]").end()
    assert answer.code == 0, answer.err
    assert answer.err == ""
    folder = workplace / "my runs" / "a [b]"
    names = {path.name for path in folder.iterdir()}
    assert names >= {
        "config.toml",
        "start.json",
        "metrics.csv",
        "checkpoints",
        "replay",
        "policy.onnx",
        "report.png",
        "evaluation.json",
    }
    assert any(name.startswith("events.out.tfevents") for name in names)
    assert (folder / "report.png").read_bytes().startswith(b"\x89PNG")
    for name in ("policy.onnx", "report.png", "evaluation.json", "config.toml", "metrics.csv"):
        assert f"my runs/a [b]/{name}: " in answer.out
    lines = [line.strip() for line in answer.out.splitlines() if line.startswith("  ")]
    assert len(lines) == 3
    monkeypatch.setenv("PYTHONPATH", str(Path(edge_sac.__file__).parents[1]))
    tensorboard, drive, train_on = lines
    shown = run(f"{tensorboard} --inspect", workplace)
    assert "train/alpha" in shown.stdout, shown.stderr
    driven = run(drive, workplace)
    assert driven.returncode == 0, driven.stderr
    assert driven.stdout.count("episode ") == 10
    assert "mean return" in driven.stdout
    further = run(train_on.replace("20000", "1"), workplace)
    assert further.returncode == 0, further.stderr
    assert "resumed at step 400" in further.stdout


@pytest.fixture
def undelivered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the policy's judgement at a run's end."""
    monkeypatch.setattr(train_module, "deliver", lambda *_: 0)


@pytest.mark.usefixtures("undelivered")
def test_its_own_configuration_trains_the_same_run_again(call: Any, trained: Path, outcome: Any) -> None:
    answer = call("train", "--config", trained / "pendulum" / "config.toml", "--out", "again")
    assert answer.code == 0
    assert Path("again/config.toml").read_text() == (trained / "pendulum" / "config.toml").read_text()
    outcome(Path("again")).check_equal(outcome(trained / "pendulum"))


@pytest.mark.usefixtures("undelivered")
def test_another_seed_and_another_precision_train_another_run(call: Any, trained: Path, outcome: Any) -> None:
    whole = outcome(trained / "furuta")
    for number, change in enumerate((("--seed", 1), ("--precision", "fp32"))):
        run_folder = Path(f"other{number}")
        assert call("train", "--config", trained / "furuta" / "config.toml", *change, "--out", run_folder).code == 0
        other = outcome(run_folder)
        assert not torch.equal(whole.tensors["best.w0"], other.tensors["best.w0"])


@pytest.mark.usefixtures("undelivered")
def test_runs_are_named_after_what_is_trained_and_then_numbered(call: Any) -> None:
    for _ in range(2):
        assert call("train", "--config", "tiny.toml", "--steps", 1).code == 0
    assert call("train", "--config", "tiny.toml", "--steps", 1, "--env", "edge_sac/Furuta-v0").code == 0
    assert sorted(path.name for path in Path("runs").iterdir()) == ["edge_sac-Furuta-v0", "furuta", "furuta-2"]


@pytest.mark.parametrize("name", ["pendulum", "furuta"])
def test_judgement_written_as_json_is_what_was_printed_and_always_the_same(call: Any, trained: Path, name: str) -> None:
    for output in ("one.json", "two.json"):
        answer = call("eval", trained / name, "--episodes", 2, "--json", output)
        assert answer.code == 0
    one, two = (json.loads(Path(path).read_text()) for path in ("one.json", "two.json"))
    assert one == two
    assert one["episodes"] == len(one["per_episode"]) == 2
    mean = sum(episode["episode_return"] for episode in one["per_episode"]) / 2
    assert one["return_mean"] == pytest.approx(mean)
    assert f"mean return {one['return_mean']:.1f} over 2" in answer.out
    # Pendulum-v1 says nothing of success.
    assert one["success_rate"] == {"pendulum": None, "furuta": 0.0}[name]
    assert call("eval", trained / name, "--episodes", 2, "--json", "three.json", "--seed", 1).code == 0
    assert json.loads(Path("three.json").read_text())["per_episode"] != one["per_episode"]


def test_evaluation_needs_no_torch(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import edge_sac

    monkeypatch.setenv("PYTHONPATH", str(Path(edge_sac.__file__).parents[1]))
    program = (
        "import sys; sys.modules['torch'] = None; "
        f"sys.argv = ['edge-sac', 'eval', {str(trained / 'pendulum' / 'policy.onnx')!r}, '--episodes', '1']; "
        "from edge_sac.cli import main; main()"
    )
    done = run(shlex.join([sys.executable, "-c", program]), trained)
    assert done.returncode == 0, done.stderr
    assert "mean return" in done.stdout


def test_policy_file_is_judged_wherever_it_lies_even_beside_a_configuration(
    call: Any, trained: Path, workplace: Path
) -> None:
    (workplace / "config.toml").write_text("steps = 5\n", encoding="utf-8")
    (workplace / "policy.onnx").write_bytes((trained / "pendulum" / "policy.onnx").read_bytes())
    answer = call("eval", "policy.onnx", "--episodes", 1)
    assert answer.code == 0
    assert "Pendulum-v1" in answer.out


def test_a_task_of_the_control_suite_leaves_a_policy_that_knows_its_channels_and_rate(call: Any) -> None:
    pytest.importorskip("dm_control", reason="the suite: pip install 'edge-sac[dmc]'")
    answer = call("train", "--config", "tiny.toml", "--env", "dmc/cartpole-swingup", "--steps", 150)
    assert answer.code == 0, answer.err
    assert "environment dmc/cartpole-swingup" in answer.out
    policy = Path("runs/dmc-cartpole-swingup/policy.onnx")
    contract = Policy.load(policy).contract
    names = ["position[0]", "position[1]", "position[2]", "velocity[0]", "velocity[1]"]
    assert [channel.name for channel in contract.observation] == names
    assert [(channel.name, channel.lower, channel.upper) for channel in contract.action] == [("slide", -1.0, 1.0)]
    assert contract.control_hz == pytest.approx(100.0)
    judged = call("eval", policy, "--episodes", 1, "--json", "judged.json")
    assert judged.code == 0, judged.err
    assert json.loads(Path("judged.json").read_text())["per_episode"][0]["length"] == 1_000


def test_export_writes_the_best_policy_or_the_last_and_says_which(call: Any, finished: Path) -> None:
    best = call("export", finished, "-o", "best.onnx")
    assert best.code == 0
    assert "best.onnx: the best evaluated policy, of step 200, read back at parity" in best.out
    last = call("export", finished, "-o", "last.onnx", "--last")
    assert "last.onnx: the last policy, of step 400" in last.out
    assert Policy.load("best.onnx").hash == Policy.load(finished / "policy.onnx").hash
    assert Policy.load("best.onnx").hash != Policy.load("last.onnx").hash
    contract = Policy.load("last.onnx").contract
    assert contract.training is not None
    assert (contract.training.steps, contract.precision, contract.robot) == (400, "fp16", "Pendulum-v1")


def test_run_that_was_never_evaluated_leaves_its_last_policy_and_a_report(call: Any) -> None:
    Path("short.toml").write_text(Path("tiny.toml").read_text().replace("eval_every = 200", "eval_every = 9999"))
    answer = call("train", "--config", "short.toml", "--env", "Pendulum-v1", "--steps", 150, "--out", "run")
    assert answer.code == 0, answer.err
    assert "the last policy, of step 200" in answer.out
    assert Path("run/report.png").stat().st_size > 10_000


@pytest.mark.parametrize(("healthy", "code"), [(True, 0), (False, 4)])
def test_doctor_fails_only_where_something_needed_does_not_work(
    call: Any, healthy: bool, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from edge_sac.commands import doctor

    lines = [doctor.Line("torch", False, "absent", "pip install", required=False)]
    lines.append(doctor.Line("disk", healthy, "said", "" if healthy else "delete runs"))
    monkeypatch.setattr(doctor, "doctor_lines", lambda: lines)
    answer = call("doctor")
    assert answer.code == code
    assert "note  torch: absent\n      pip install\n" in answer.out
    assert ("FAIL  disk: said\n      delete runs\n" in answer.out) == (not healthy)


def test_help_and_version_are_answered(call: Any) -> None:
    import edge_sac

    assert edge_sac.__version__ in call("--version").out
    for arguments in ((), ("--help",), ("train", "--help")):
        answer = call(*arguments)
        assert (answer.code, answer.err) == (0, "")
        assert "Usage: " in answer.out
