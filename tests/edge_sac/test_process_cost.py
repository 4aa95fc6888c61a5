"""What a process holds besides its buffers is measured in one like it, within a deadline."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from edge_sac.commands import process_cost
from edge_sac.commands.process_cost import Cost, ProcessCost, measure
from edge_sac.config import Config
from edge_sac.errors import EdgeSacError

pytest.importorskip("torch")
CONFIG = Config(physics="equations", device="cpu")


def test_every_stage_of_a_process_is_measured() -> None:
    cost = measure(CONFIG)
    stages = {stage.stage: stage.bytes for stage in cost.stages}
    assert list(stages) == [
        "interpreter",
        "import torch",
        "other libraries",
        "environment, twice",
        "policy's session",
        "first updates",
    ]
    assert cost.bytes == sum(stages.values())
    assert cost.gpu_left is None
    # Bounds are far below what was seen: an interpreter takes 16 MiB, torch for a CPU 200, matplotlib 27.
    assert stages["interpreter"] > 2**20
    assert stages["import torch"] > 20 * 2**20
    assert cost.report > 2**20


def test_cost_is_the_sum_of_its_stages() -> None:
    assert ProcessCost((Cost("a", 3), Cost("b", 4))).bytes == 7


def test_a_process_that_takes_too_long_is_stopped() -> None:
    with pytest.raises(EdgeSacError, match=r"longer than 0\.01 s"):
        measure(CONFIG, patience=0.01)


def test_a_process_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*arguments: Any, **_settings: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(arguments, 1, "", "Traceback\nConfigError: NoSuch-v0\n")

    monkeypatch.setattr(process_cost.subprocess, "run", run)
    with pytest.raises(EdgeSacError, match=r"exit code 1: ConfigError: NoSuch-v0"):
        measure(CONFIG)


def test_whatever_libraries_print_the_last_line_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = 'pybullet build time\n{"stages": [{"stage": "interpreter", "bytes": 5}], "report": 6, "gpu_left": 7}\n'

    def run(*arguments: Any, **settings: Any) -> subprocess.CompletedProcess[str]:
        assert settings["timeout"] == process_cost.PATIENCE_S
        return subprocess.CompletedProcess(arguments, 0, answer, "")

    monkeypatch.setattr(process_cost.subprocess, "run", run)
    assert measure(CONFIG) == ProcessCost((Cost("interpreter", 5),), 6, 7)
