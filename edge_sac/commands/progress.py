"""What a person sees while a run trains: one line that moves, or a line a minute where nothing can move."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bar

from edge_sac.run_state import Progress

QUIET_SECONDS = 20.0
"""Between two lines where the output is no terminal."""


class StatusLine:
    """A progress bar on a terminal, plain lines elsewhere; call it with each Progress."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Bar | None = None
        self._task = None
        self._printed = -QUIET_SECONDS
        if console.is_terminal:
            self._bar = Bar(
                TaskProgressColumn(),
                BarColumn(24),
                MofNCompleteColumn(),
                TextColumn("{task.description}"),
                console=console,
            )

    def __enter__(self) -> StatusLine:
        if self._bar is not None:
            self._bar.start()
            self._task = self._bar.add_task("first steps, at random", total=None)  # type: ignore[assignment]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, progress: Progress) -> None:
        """Show where the run stands, and what happened."""
        if progress.message:
            self._console.print(f"step {progress.step}: {progress.message}")
        text = describe(progress)
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=progress.step, total=progress.steps, description=text)
        elif time.monotonic() - self._printed >= QUIET_SECONDS or progress.step >= progress.steps:
            self._printed = time.monotonic()
            self._console.print(f"step {progress.step}/{progress.steps}  {text}")


def describe(progress: Progress) -> str:
    """Return the status line: return, success, alpha, speed, achieved update-to-data ratio, time left."""
    success = "" if progress.success_rate is None else f"success {100 * progress.success_rate:.0f} %  "
    minutes, seconds = divmod(round(progress.seconds_left), 60)
    # Steps at random are no measure of what is to come.
    left = f"left {minutes}:{seconds:02d}" if progress.utd_ratio > 0 else "at random until learning begins"
    return (
        f"return {progress.episode_return:.1f}  {success}alpha {progress.alpha:.3g}  "
        f"{progress.updates_per_s:.0f} updates/s  updates/step {progress.utd_ratio:.2f}  {left}"
    )
