"""Ctrl-C, SIGTERM and a lost terminal, turned into a wish that the training loop looks at."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from types import FrameType, TracebackType
from typing import Any

GRACE_S = 10.0
"""How long an episode may go on after the first signal."""
NOTICE = f"\nStopping with the episode, within {GRACE_S:g} s; once more stops at once.\n".encode()
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """While entered, a first signal requests a stop at the episode's end, a second one at once.

    A lost terminal that is ignored already stays so: that is how nohup lets a run outlive it.
    """

    def __init__(self) -> None:
        self._first: float | None = None
        self._count = 0
        self._before: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        """True once a signal came."""
        return self._count > 0

    @property
    def urgent(self) -> bool:
        """True once a second signal came, or the first is GRACE_S old."""
        return self._count > 1 or (self._first is not None and time.monotonic() - self._first > GRACE_S)

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self._count += 1
        self._first = self._first or time.monotonic()
        if self._count == 1:
            # Not through Python's buffers: they may be in the middle of a write just now.
            with contextlib.suppress(OSError):
                os.write(sys.stderr.fileno(), NOTICE)

    def __enter__(self) -> StopSignals:
        for number in SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
