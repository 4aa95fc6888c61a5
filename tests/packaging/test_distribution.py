"""The installed distribution holds our four packages with their data, and nothing else."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import edge_sac
from edge_sac.commands.doctor import pybullet_wheel

CHECKOUT = Path(__file__).parents[2]
PACKAGES = ("edge_sac", "firmware_bridge", "robots", "sim")
TESTED_IS_WHEEL = os.environ.get("EDGE_SAC_TESTED") == "wheel"

pytestmark = pytest.mark.skipif(not TESTED_IS_WHEEL, reason="of the installed wheel: run make test")


def shipped() -> set[str]:
    files = metadata.files("edge-sac")
    assert files is not None
    return {str(file) for file in files if "__pycache__" not in str(file)}


@pytest.mark.parametrize("package", PACKAGES)
def test_import_name_belongs_to_us_alone(package: str) -> None:
    assert set(metadata.packages_distributions()[package]) == {"edge-sac"}


@pytest.mark.parametrize("package", PACKAGES)
def test_tested_package_is_the_installed_one_and_not_the_checkout(package: str) -> None:
    file = Path(importlib.import_module(package).__file__ or "").resolve()
    assert file == Path(str(metadata.distribution("edge-sac").locate_file(f"{package}/__init__.py"))).resolve()
    assert not file.is_relative_to(CHECKOUT / package)
    assert str(CHECKOUT) not in sys.path


def test_wheel_holds_exactly_the_source_files_of_the_checkout() -> None:
    kinds = ("*.py", "*.toml", "*.urdf", "py.typed")
    sources = {
        str(file.relative_to(CHECKOUT))
        for package in PACKAGES
        for kind in kinds
        for file in (CHECKOUT / package).rglob(kind)
    }
    assert {file for file in shipped() if file.split("/")[0] in PACKAGES} == sources


def test_wheel_holds_no_tests_and_no_other_top_level_name() -> None:
    names = {file.split("/")[0] for file in shipped() if not file.startswith("..")}
    assert {name for name in names if not name.endswith(".dist-info")} == set(PACKAGES)


def test_robot_and_its_model_are_shipped() -> None:
    assert "robots/furuta.toml" in shipped()
    assert any(file.startswith("sim/assets/") and file.endswith(".urdf") for file in shipped())


def test_version_is_that_of_the_package() -> None:
    assert metadata.version("edge-sac") == edge_sac.__version__


def test_command_is_installed_and_answers() -> None:
    command = Path(sys.executable).parent / "edge-sac"
    done = subprocess.run([command, "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "train" in done.stdout


def test_registering_the_robots_with_gymnasium_loads_no_simulator() -> None:
    code = (
        "import gymnasium, sim.registration, sys; sim.registration.register();"
        "assert 'edge_sac/Furuta-v0' in gymnasium.registry; assert 'pybullet' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def requirements(extra: str) -> set[str]:
    lines = [Requirement(line) for line in metadata.requires("edge-sac") or []]
    return {line.name for line in lines if line.marker is None or line.marker.evaluate({"extra": extra})}


def test_base_install_brings_neither_torch_nor_a_runtime_nor_a_simulator() -> None:
    assert requirements("") & {"torch", "onnxruntime", "onnxruntime-gpu", "pybullet", "dm-control", "mujoco"} == set()


def test_the_two_runtimes_are_in_two_extras() -> None:
    assert requirements("cpu") & {"onnxruntime", "onnxruntime-gpu"} == {"onnxruntime"}
    assert "onnxruntime" not in requirements("gpu")


def test_sim_asks_for_pybullet_only_where_it_has_a_wheel() -> None:
    assert ("pybullet" in requirements("sim")) == pybullet_wheel()


def test_dmc_asks_for_the_suite_only_where_all_of_it_has_wheels() -> None:
    assert requirements("dmc") >= {"dm-control", "mujoco"} or sys.version_info >= (3, 13)


def test_no_requirement_is_pinned() -> None:
    lines = [Requirement(line) for line in metadata.requires("edge-sac") or []]
    assert [str(line) for line in lines if any(part.operator in ("==", "===", "~=") for part in line.specifier)] == []
