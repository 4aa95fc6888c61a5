"""Where commands print: plain lines, never broken, that can be pasted back into a shell."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from rich.console import Console


class Terminal(Console):
    """Standard output; when whoever reads it goes away, the work goes on unseen."""

    def __init__(self) -> None:
        # Markup would swallow brackets of paths and channel names, wrapping would break a command in two.
        super().__init__(markup=False, emoji=False, highlight=False, soft_wrap=True)

    def on_broken_pipe(self) -> None:
        """Print nothing more."""
        self.quiet = True
        discard_output()


def discard_output() -> None:
    """Let standard output lead nowhere, so that Python's own flush at exit meets no closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def command(*arguments: str | Path) -> str:
    """Return a line that calls this program again, the way it was called, with other arguments."""
    return shlex.join([*_program("edge-sac", "edge_sac"), *map(str, arguments)])


def tensorboard(run: Path) -> str:
    """Return the line that shows a run in the TensorBoard installed beside this program."""
    return shlex.join([*_program("tensorboard", "tensorboard.main"), "--logdir", str(run)])


def _program(script: str, module: str) -> list[str]:
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return [sys.executable, "-m", module]
    if called.name == "edge-sac" and "/" in sys.argv[0]:
        return [str(called.with_name(script))]
    return [script]
