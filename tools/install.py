"""Installs WHAT, with the extras named, into the environment whose Python runs this file.

usage: VENV/bin/python tools/install.py WHAT EXTRA...        WHAT: a folder or a wheel

A Jetson's torch, ONNX Runtime and NumPy are built for each other and for its GPU; pip would replace them
without a word. So what the system below this environment brings is held: torch at its version, NumPy within
its major version (extension modules compiled against it break across one), and the `cpu` extra is dropped
when ONNX Runtime is there, under whatever distribution name.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def from_system(module: str) -> bool:
    """Return whether `module` is found outside this environment, in the system it looks through to."""
    spec = importlib.util.find_spec(module)
    return spec is not None and spec.origin is not None and not Path(spec.origin).is_relative_to(sys.prefix)


def constraints() -> list[str]:
    """Return the lines that keep pip from replacing what the system brings."""
    if from_system("torch"):
        held = [f"torch=={importlib.metadata.version('torch')}"]
        if from_system("numpy"):
            major = int(importlib.metadata.version("numpy").split(".")[0])
            held.append(f"numpy<{major + 1}")
        return held
    if sys.version_info[:2] == (3, 11):
        return (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return []


def main(what: str, extras: list[str]) -> int:
    """Return pip's exit status."""
    held = constraints()
    constraint_file = Path(sys.prefix) / "constraints.txt"
    constraint_file.write_text("".join(f"{line}\n" for line in held), encoding="utf-8")
    if from_system("onnxruntime"):
        extras = [extra for extra in extras if extra != "cpu"]
    print(f"Installing {Path(what).name}[{','.join(extras)}] {' '.join(held)}", flush=True)
    pip = [sys.executable, "-m", "pip"]
    # pip takes a wheel of the same version for installed already.
    subprocess.run([*pip, "uninstall", "--quiet", "--yes", "edge-sac"], check=True, stderr=subprocess.DEVNULL)
    binary = ["--prefer-binary", "--only-binary", "pybullet"]
    requirement = f"{Path(what).resolve()}[{','.join(extras)}]"
    command = [*pip, "install", *binary, "--constraint", str(constraint_file), requirement]
    return subprocess.run(command).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
