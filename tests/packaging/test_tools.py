"""The environment is made by a Python that can, and keeps what a Jetson's system brings."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).parents[2] / "tools"

# Answers like a Python: 3.10 to 3.13 with venv, with or without torch; `-m venv` makes bin/python.
PYTHON = """#!/bin/sh
case "$*" in
*"import torch"*) exit {torch} ;;
*"-m venv"*)
    echo "$*" > "{log}"
    for last in "$@"; do :; done
    mkdir -p "$last/bin"
    cp "$0" "$last/bin/python" ;;
*) exit 0 ;;
esac
"""


def write_python(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def make_venv(tmp_path: Path, *pythons: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {
        "PATH": f"{tmp_path}/shims:{tmp_path}/bin:/usr/bin:/bin",
        "PYENV_ROOT": f"{tmp_path}/none",
    }
    return subprocess.run(
        [TOOLS / "make-venv", tmp_path / "venv", *pythons],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_python_that_answers_but_fails_is_passed_over(tmp_path: Path) -> None:
    write_python(tmp_path / "shims" / "python-a", "#!/bin/sh\nexit 127\n")
    write_python(tmp_path / "bin" / "python-a", PYTHON.format(torch=1, log=tmp_path / "log"))
    done = make_venv(tmp_path, "python-a")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{tmp_path}/bin/python-a" in done.stdout


def test_python_whose_venv_fails_leaves_nothing_and_the_next_is_tried(tmp_path: Path) -> None:
    half = '#!/bin/sh\ncase "$*" in *"-m venv"*) for d in "$@"; do :; done; mkdir -p "$d/half"; exit 1 ;; esac\n'
    write_python(tmp_path / "bin" / "python-a", half)
    assert make_venv(tmp_path, "python-a").returncode == 1
    assert not (tmp_path / "venv").exists()
    write_python(tmp_path / "bin" / "python-b", PYTHON.format(torch=1, log=tmp_path / "log"))
    assert make_venv(tmp_path, "python-a", "python-b").returncode == 0
    assert not (tmp_path / "venv" / "half").exists()


def test_no_python_is_one_line_that_names_the_package(tmp_path: Path) -> None:
    done = make_venv(tmp_path, "python-a")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "apt-get install python3-venv" in done.stderr


@pytest.mark.parametrize(("torch", "seen"), [(0, True), (1, False)], ids=["with torch", "without torch"])
def test_environment_sees_the_system_only_where_torch_is_there(tmp_path: Path, torch: int, seen: bool) -> None:
    write_python(tmp_path / "bin" / "python-a", PYTHON.format(torch=torch, log=tmp_path / "log"))
    make_venv(tmp_path, "python-a")
    assert ("--system-site-packages" in (tmp_path / "log").read_text()) == seen


@pytest.fixture
def install() -> ModuleType:
    spec = importlib.util.spec_from_file_location("install", TOOLS / "install.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_torch_of_the_system_is_held_with_its_numpy(install: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"torch": "2.5.0a0+872d972e41.nv24.8", "numpy": "1.26.4"}
    monkeypatch.setattr(install, "from_system", lambda module: module in versions)
    monkeypatch.setattr(install.importlib.metadata, "version", versions.__getitem__)
    assert install.constraints() == ["torch==2.5.0a0+872d972e41.nv24.8", "numpy<2"]


PINNED = ["torch==2.13.0", "dm-control==1.0.50", "mujoco==3.17.0"]


@pytest.mark.parametrize(("version", "held"), [((3, 11, 7), PINNED), ((3, 12, 1), [])])
def test_without_it_what_results_depend_on_is_fixed_on_python_3_11_alone(
    install: ModuleType, monkeypatch: pytest.MonkeyPatch, version: tuple[int, ...], held: list[str]
) -> None:
    monkeypatch.setattr(install, "from_system", lambda _module: False)
    monkeypatch.setattr(install.sys, "version_info", version)
    assert install.constraints() == held


def test_module_of_this_environment_is_not_of_the_system(install: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install.sys, "prefix", str(Path(pytest.__file__).parents[1]))
    assert not install.from_system("pytest")
    monkeypatch.setattr(install.sys, "prefix", "/nowhere")
    assert install.from_system("pytest")
    assert not install.from_system("no_such_module_anywhere")
    assert sys.modules["pytest"] is pytest
