"""Names what `make test` left out, with the line that installs it.

usage: VENV/bin/python tools/left_out.py REQUIRE PYTHON...

Exit status 1 when REQUIRE is "all" and a tool is missing. A further Python is never required: it is tested
where it exists.
"""

from __future__ import annotations

import importlib.util
import platform
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
REQUIRED = {
    "pybullet": "the PyBullet twin, which has no wheel for {here}. On x86-64",
    "dm_control": "the DeepMind Control Suite, which has no wheel for {here}. Up to Python 3.12",
}
"""What is left out where a module is missing, and where the line that installs it works."""


def main(require: str, pythons: list[str]) -> int:
    """Return 0, or 1 when something required is missing; prints one line for each thing left out."""
    missing = [what for module, what in REQUIRED.items() if importlib.util.find_spec(module) is None]
    here = f"Python {platform.python_version()} on {platform.machine()}"
    for what in missing:
        print(f"left out: {what.format(here=here)}: sudo apt-get install python3.11-venv && make clean test")
    for python in pythons:
        if not (ROOT / f".venv-{python}" / "bin" / "python").exists():
            print(f"left out: the base install under {python}: sudo apt-get install {python}-venv")
    return 1 if missing and require == "all" else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
