"""What acts on the robot never loads torch, neither as a module nor as a mapped library."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

REPORT = "; import sys; print('torch' in sys.modules, 'libtorch' in open('/proc/self/maps').read())"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/maps")


def loaded(modules: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"import {modules}{REPORT}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    "modules",
    [
        "edge_sac, edge_sac.errors",
        "edge_sac.contract",
        "edge_sac.policy_graph",
        "edge_sac.policy",
        "edge_sac.cli",
        "edge_sac.commands.doctor",
        "robots.env, robots.spec, sim.registration",
    ],
)
def test_no_torch_is_loaded_by(modules: str) -> None:
    assert loaded(modules) == "False False"


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch: pip install 'edge-sac[train]'")
def test_this_check_sees_torch_where_it_is_loaded() -> None:
    assert loaded("torch") == "True True"
