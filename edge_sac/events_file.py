"""A file of TensorBoard events, written by the thread that has them.

TensorBoard's own writer leaves that to a thread, which a full disk ends with a traceback and a run that knows nothing.
"""

from __future__ import annotations

import sys
import time
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from edge_sac.errors import MissingExtra


class EventsFile:
    """A new events file in a run's folder; what other files there say from `purge_step` on is void.

    Raises OSError when it cannot be written, MissingExtra without TensorBoard.
    """

    def __init__(self, run: Path, purge_step: int | None) -> None:
        self._proto, record_writer = _tensorboard()
        # The name is how TensorBoard finds it; the time in it is also its order among others.
        self._file = (run / f"events.out.tfevents.{time.time():017.6f}.edge-sac").open("wb", buffering=0)
        self._records = record_writer(self._file)
        try:
            self._add(file_version="brain.Event:2")
            if purge_step is not None:
                self._add(step=purge_step, session_log=self._proto.SessionLog(status=self._proto.SessionLog.START))
        except OSError:
            self._file.close()
            raise

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Append one event that holds every value."""
        summary = self._proto.Event().summary
        for tag, value in values.items():
            summary.value.add(tag=tag, simple_value=value)
        self._add(step=step, summary=summary)

    def _add(self, **content: Any) -> None:
        self._records.write(self._proto.Event(wall_time=time.time(), **content).SerializeToString())

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def _tensorboard() -> tuple[Any, Any]:
    """Return TensorBoard's messages and the class that frames them."""
    # TensorBoard loads any TensorFlow it finds, hundreds of megabytes, unless a module of this name exists.
    if "tensorflow" not in sys.modules:
        sys.modules.setdefault("tensorboard.compat.notf", types.ModuleType("tensorboard.compat.notf"))
    try:
        from tensorboard.compat.proto import event_pb2  # type: ignore[import-untyped]
        from tensorboard.summary.writer.record_writer import RecordWriter  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtra("TensorBoard is not installed: pip install 'edge-sac[train]'") from error
    return event_pb2, RecordWriter
