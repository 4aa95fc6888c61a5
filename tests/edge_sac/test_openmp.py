"""Idle threads are put to sleep, unless the user said otherwise, before anything loads OpenMP."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from edge_sac.openmp import PASSIVE, USERS, wait_passively


@pytest.mark.parametrize("name", USERS)
def test_what_the_user_set_is_left_alone(name: str) -> None:
    environment = {name: "active", "HOME": "/root"}
    assert not wait_passively(environment)
    assert environment == {name: "active", "HOME": "/root"}


def test_nothing_set_becomes_passive() -> None:
    environment = {"HOME": "/root"}
    assert wait_passively(environment)
    assert environment == {"HOME": "/root"} | PASSIVE


def _openmp_settings(program: str) -> str:
    """Return what the OpenMP library says of itself when it is loaded by `program`."""
    clean = {name: value for name, value in os.environ.items() if name not in USERS}
    child = subprocess.run(
        [sys.executable, "-c", program],
        env=clean | {"OMP_DISPLAY_ENV": "verbose"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return child.stderr


def test_program_waits_passively_by_the_time_torch_is_loaded() -> None:
    """libgomp then spins for no time at all; LLVM's libomp repeats the policy."""
    pytest.importorskip("torch")
    run = "import sys; sys.argv = ['edge-sac', '--version']\nfrom edge_sac import cli\n"
    run += "try: cli.main()\nexcept SystemExit: pass\n"
    settings = _openmp_settings(run + "import torch; torch.set_num_threads(2)")
    assert "GOMP_SPINCOUNT = '0'" in settings or "OMP_WAIT_POLICY='PASSIVE'" in settings, settings
    assert "GOMP_SPINCOUNT = '0'" not in _openmp_settings("import torch; torch.set_num_threads(2)")


def test_nothing_the_command_line_loads_at_its_start_brings_openmp() -> None:
    assert _openmp_settings("import edge_sac.cli") == ""
