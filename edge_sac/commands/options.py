"""What the command line checks of options before a command runs."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from edge_sac.errors import MissingExtra, Refused

EXTRAS = {"train": ("torch", "safetensors", "tensorboard", "matplotlib"), "cpu": ("onnxruntime",)}


def reachable(path: Path | None) -> Path | None:
    """Return the path; raises Refused for one that the system cannot even look at, such as a name that is too long."""
    try:
        if path is not None:
            path.exists()
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}; give another path") from error
    return path


def require(*extras: str) -> None:
    """Raise MissingExtra, with the line that installs it, for a package of `extras` that is not there."""
    for extra in extras:
        for module in EXTRAS[extra]:
            if importlib.util.find_spec(module) is None:
                other = " (or 'edge-sac[gpu]' with an NVIDIA GPU on x86-64)" if extra == "cpu" else ""
                raise MissingExtra(f"{module} is not installed; pip install 'edge-sac[{extra}]'{other}")
