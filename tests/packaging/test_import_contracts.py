"""The import contracts hold, and each has been seen to fail on a violation."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
LINTER = Path(sys.executable).parent / "lint-imports"

pytestmark = pytest.mark.skipif(not LINTER.exists(), reason="needs import-linter: pip install 'edge-sac[dev]'")


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of the packages and their contracts."""
    for package in ("edge_sac", "firmware_bridge", "robots", "sim"):
        shutil.copytree(CHECKOUT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(CHECKOUT / "pyproject.toml", tmp_path)
    return tmp_path


def lint(folder: Path) -> tuple[int, str]:
    done = subprocess.run([LINTER, "--no-cache"], cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout


def test_contracts_are_kept(copy: Path) -> None:
    code, report = lint(copy)
    assert code == 0, report


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        pytest.param("robots/bad.py", "import sim", "The twin stands on the robot", id="robot imports its twin"),
        pytest.param("firmware_bridge/bad.py", "import robots", "The twin stands on", id="link imports the robot"),
        pytest.param("robots/bad.py", "import torch", "know no learner", id="robot imports torch"),
        pytest.param("sim/bad.py", "import edge_sac.errors", "know no learner", id="twin imports the learner"),
        pytest.param(
            "edge_sac/bad.py", "import robots.spec", "learner's modules know no", id="learner imports a robot"
        ),
        pytest.param(
            "edge_sac/bad.py",
            "import edge_sac.commands.doctor",
            "calls a command",
            id="learner calls a command",
        ),
        pytest.param("edge_sac/policy_graph.py", "import torch", "loads no torch", id="policy imports torch"),
        pytest.param("robots/spec.py", "import gymnasium", "NumPy and msgspec", id="robot imports gymnasium"),
        pytest.param("firmware_bridge/bad.py", "import numpy", "standard library", id="link imports numpy"),
    ],
)
def test_violation_is_found(copy: Path, module: str, line: str, contract: str) -> None:
    with (copy / module).open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")
    code, report = lint(copy)
    broken = [row for row in report.splitlines() if " BROKEN" in row]
    assert code == 1, report
    assert any(contract in row for row in broken), report
