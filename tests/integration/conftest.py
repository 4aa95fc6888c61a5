"""The whole program, called as a user calls it, on networks so small that a run takes a second."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

import edge_sac
import robots
from edge_sac.checkpoint import load_checkpoint
from edge_sac.cli import main as program
from edge_sac.metrics import read_metrics
from edge_sac.replay_header import HEADER_BYTES

TINY = """
steps = 300
random_steps = 100
eval_every = 200
eval_episodes = 1
replay_capacity = 5000
updates_per_step = 0.5
physics = "equations"
threads = 1

[agent]
hidden = [16, 16]
batch = 32
"""
PATIENCE_S = 60.0
"""How long a child may take for what takes it a few seconds on a machine that has nothing else to do."""
TIMING = ("wall_s", "updates_per_s")


@dataclass(frozen=True)
class Answer:
    """What a call left: exit code and both outputs."""

    code: int
    out: str
    err: str


Call = Callable[..., Answer]


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Be in an empty folder, with tiny.toml in it."""
    (tmp_path / "tiny.toml").write_text(TINY, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    yield tmp_path
    torch.set_num_threads(threads)


@pytest.fixture
def robot(workplace: Path) -> Path:
    """Return a description of the Furuta pendulum whose episodes take 100 steps, so that a short run has several."""
    text = (Path(robots.__file__).parent / "furuta.toml").read_text(encoding="utf-8")
    for given, short in (("episode_time = 10.0", "episode_time = 2.0"), ("judged_time = 5.0", "judged_time = 1.0")):
        assert given in text
        text = text.replace(given, short)
    (workplace / "mine.toml").write_text(text, encoding="utf-8")
    return Path("mine.toml")


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Return the program as a function of its arguments, in this process."""

    def call_program(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["/somewhere/bin/edge-sac", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as caught:
            program()
        assert isinstance(caught.value.code, int)
        return Answer(caught.value.code, *capfd.readouterr())

    return call_program


class Child:
    """The program in a process of its own; every wait for it has an end."""

    def __init__(self, folder: Path, arguments: tuple[object, ...]) -> None:
        path = os.pathsep.join([str(Path(edge_sac.__file__).parents[1]), str(folder)])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "edge_sac", *map(str, arguments)],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # What runs the tests may ignore Ctrl-C itself, which children inherit.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )

    def wait_for(self, text: str, stream: str = "stdout", then: str = "") -> str:
        """Return what was printed up to the line that holds `text`, and that which holds `then`."""
        pipe = getattr(self.process, stream)
        seen, deadline = b"", time.monotonic() + PATIENCE_S
        while text.encode() not in seen or then.encode() not in seen or not seen.endswith(b"\n"):
            ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
            more = os.read(pipe.fileno(), 65536) if ready else b""
            if not more:
                self.process.kill()
                raise AssertionError(f"no {text!r} in {seen!r} {self.process.communicate()!r}")
            seen += more
        return seen.decode()

    def end(self) -> Answer:
        """Return the answer once the process has ended."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return Answer(self.process.returncode, (out or b"").decode(), err.decode())


@pytest.fixture
def start(workplace: Path) -> Iterator[Callable[..., Child]]:
    """Return a function that starts the program in a process of its own."""
    children: list[Child] = []

    def start_child(*arguments: object) -> Child:
        children.append(Child(workplace, arguments))
        return children[-1]

    yield start_child
    for child in children:
        child.process.kill()
        child.process.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a finished run on Pendulum-v1, and beside it one on the Furuta twin; copy before changing anything."""
    root = tmp_path_factory.mktemp("trained")
    (root / "tiny.toml").write_text(TINY, encoding="utf-8")
    before = Path.cwd(), sys.argv
    os.chdir(root)
    try:
        for name, arguments in (("pendulum", ["--env", "Pendulum-v1"]), ("furuta", ["--steps", "150"])):
            sys.argv = ["/somewhere/bin/edge-sac", "train", "--config", "tiny.toml", "--out", name, *arguments]
            with pytest.raises(SystemExit) as caught:
                program()
            assert caught.value.code == 0
    finally:
        os.chdir(before[0])
        sys.argv = before[1]
    return root


@pytest.fixture
def finished(trained: Path, workplace: Path) -> Path:
    """Return a copy of the finished run on Pendulum-v1, called `run` in the workplace."""
    shutil.copytree(trained / "pendulum", workplace / "run")
    return Path("run")


def contents(folder: Path) -> dict[str, bytes]:
    """Return every file under `folder` by name, and every folder."""
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b"" for path in folder.rglob("*")}


@dataclass(frozen=True)
class Outcome:
    """What a run came to, without what depends on the clock."""

    step: int
    tensors: dict[str, torch.Tensor]
    state: dict[str, Any]
    replay: bytes
    records: list[tuple[str, ...]]

    @staticmethod
    def of(run: Path) -> Outcome:
        """Return the outcome of a run's folder."""
        step, tensors, state = load_checkpoint(run)
        counters = {name: value for name, value in state["counters"].items() if name not in ("wall_s", "cpu_s")}
        columns = read_metrics(run)
        names = [name for name in columns if name not in TIMING]
        records = [tuple(map(str, row)) for row in zip(*(columns[name] for name in names), strict=True)]
        # The header counts commits, which come by the clock.
        replay = (run / "replay" / "transitions.map").read_bytes()[HEADER_BYTES:]
        return Outcome(step, tensors, {**state, "counters": counters}, replay, records)

    def check_equal(self, other: Outcome) -> None:
        """Fail at the first thing in which the two differ."""
        assert self.step == other.step
        assert self.tensors.keys() == other.tensors.keys()
        for name, tensor in self.tensors.items():
            assert torch.equal(tensor, other.tensors[name]), name
        assert self.state == other.state
        assert self.replay == other.replay
        assert self.records == other.records


@pytest.fixture
def outcome() -> Callable[[Path], Outcome]:
    return Outcome.of


@pytest.fixture
def snapshot() -> Callable[[Path], dict[str, bytes]]:
    return contents
