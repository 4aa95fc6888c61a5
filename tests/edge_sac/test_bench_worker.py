"""A candidate answers, or is ended and named with the reason; it never holds the benchmark up."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from edge_sac.commands.bench import serve
from edge_sac.commands.bench.candidate import Candidate, Work
from edge_sac.commands.bench.worker import Lost, Worker

HEAD = "import os, sys, threading\nfrom edge_sac.commands.bench.candidate import Candidate\n\n\ndef build(work):\n"
CANDIDATES = {
    "counts": "print('a banner')\n    return Candidate({'do': lambda: sum(range(100))}, {'batch': work.batch})",
    "hangs": "return Candidate({'do': threading.Event().wait})",
    "never_built": "threading.Event().wait()",
    "dies": "print('no more memory', file=sys.stderr)\n    return Candidate({'do': lambda: os._exit(7)})",
    "fails": "return Candidate({'do': lambda: 1 / 0})",
    "cannot_be_built": "raise ValueError('width 8 is too small')",
    "lacks_a_library": "import no_such_library",
    "sees": "return Candidate({'do': int}, {'env': {k: os.environ.get(k) for k in ('OMP_NUM_THREADS', 'XLA_FLAGS')},"
    "'cpus': sorted(os.sched_getaffinity(0)), 'path': sys.path})",
}


@pytest.fixture(autouse=True)
def candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a module for each kind of candidate to where the workers look for them."""
    for name, body in CANDIDATES.items():
        (tmp_path / f"candidate_{name}.py").write_text(f"{HEAD}    {body}\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))


def start(name: str, work: Work = Work(), **options: object) -> Worker:  # noqa: B008
    return Worker(f"candidate_{name}", work, **options)  # type: ignore[arg-type]


def test_work_survives_the_way_to_another_process():
    work = Work(variant="fp16", hidden=(8, 4), batch=3, threads=2, path="a b")
    assert Work.from_json(work.to_json()) == work


def test_candidate_answers_for_as_long_and_as_often_as_it_is_asked_whatever_it_prints():
    worker = start("counts", Work(batch=5))
    try:
        assert worker.facts == {"batch": 5}
        answer = worker.ask("do", 0.05)
        assert answer["wall"] >= 0.05
        assert 0 < answer["p50"] <= answer["p99"] < answer["wall"]
        assert answer["total"] == answer["done"] + 2
        assert 0 < answer["resident"] <= answer["peak"]
        assert worker.ask("do", 0.0, at_least=700)["done"] == 700
    finally:
        worker.close()
    assert worker._process.returncode is not None


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param("never_built", "gave no answer within 0.3 s", id="hangs while it is built"),
        pytest.param("cannot_be_built", "ValueError: width 8 is too small", id="cannot be built"),
        pytest.param("lacks_a_library", "not installed: No module named 'no_such_library'", id="is not installed"),
    ],
)
def test_candidate_that_cannot_be_had_is_named_with_the_reason(name, reason):
    with pytest.raises(Lost, match=reason):
        start(name, patience=0.3 if name == "never_built" else 60.0)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        pytest.param("hangs", "gave no answer within 0.2", id="hangs"),
        pytest.param("dies", "died with exit code 7: no more memory", id="dies"),
        pytest.param("fails", "ZeroDivisionError: division by zero", id="fails"),
    ],
)
def test_candidate_lost_at_work_is_ended_and_named_with_the_reason(name, reason):
    worker = start(name)
    try:
        with pytest.raises(Lost, match=reason):
            worker.ask("do", 0.0, patience=0.2 if name == "hangs" else 30.0)
        with pytest.raises(Lost):
            worker.ask("do", 0.0)
    finally:
        worker.close()
    assert worker._process.returncode is not None


def test_interpreter_that_is_not_there_is_named(tmp_path):
    with pytest.raises(Lost, match=r"cannot start .*python-of-nobody"):
        start("counts", python=str(tmp_path / "python-of-nobody"))


def test_threads_and_processors_are_those_of_the_work_and_only_our_package_is_lent(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    cpu = min(os.sched_getaffinity(0))
    worker = start("sees", Work(threads=1), cpus=[cpu])
    worker.close()
    assert worker.facts["env"]["OMP_NUM_THREADS"] == "1"
    assert "--xla_cpu_multi_thread_eigen=false" in worker.facts["env"]["XLA_FLAGS"]
    assert worker.facts["cpus"] == [cpu]
    ours = str(Path(serve.__file__).parents[3])
    listed = [*os.environ["PYTHONPATH"].split(os.pathsep), *sys.path]
    assert ours not in worker.facts["path"] or ours in listed


def test_what_returns_before_it_is_done_is_waited_for_once_in_the_rate_and_each_time_in_the_latency():
    calls: list[str] = []
    candidate = Candidate({"do": lambda: calls.append("do")}, wait=lambda: calls.append("wait"))
    answer = serve.window(candidate, "do", 0.0, at_least=5)
    assert calls[:8] == ["do", "do", "wait", *["do"] * 5]
    assert calls[8:] == ["wait", *["do", "wait"] * 3]
    assert answer["done"] == 5
    assert answer["total"] == 10
