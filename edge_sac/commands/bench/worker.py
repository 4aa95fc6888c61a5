"""A candidate as seen from the benchmark: a process that answers, or is named with the reason why it does not."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import edge_sac
from edge_sac.commands.bench.candidate import Work
from edge_sac.errors import EdgeSacError

START_PATIENCE_S = 600.0
"""For a library to load, compile and have a million transitions filled in."""
ANSWER_PATIENCE_S = 180.0
"""Beyond the window itself: five updates at the slowest, of wide networks whose threads wait for a busy core."""
END_PATIENCE_S = 5.0
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")

# Only our own package is lent to the other interpreter, not the folder it lies in: what else is installed there
# (another numpy, another torch) must not be found before the peer's.
BOOT = """
import importlib.util, sys
_, folder, *arguments = sys.argv
spec = importlib.util.spec_from_file_location("edge_sac", folder + "/__init__.py", submodule_search_locations=[folder])
sys.modules["edge_sac"] = package = importlib.util.module_from_spec(spec)
spec.loader.exec_module(package)
from edge_sac.commands.bench.serve import main
main(*arguments)
"""


class Lost(EdgeSacError):
    """A candidate is not installed, died, gave an error or gave no answer in time."""


class Worker:
    """A candidate's process, built and idle until asked; `facts` is what the candidate says of itself."""

    def __init__(
        self,
        module: str,
        work: Work,
        *,
        python: str | None = None,
        cpus: Collection[int] = (),
        patience: float = START_PATIENCE_S,
    ) -> None:
        """Start it and wait until it is built; it starts on `cpus` (none given: anywhere). Raises Lost."""
        self.work = work
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._unread = b""
        folder = str(Path(edge_sac.__file__).parent)
        arguments = [folder, module, work.to_json(), ",".join(map(str, sorted(cpus)))]
        try:
            self._process = subprocess.Popen(
                [python or sys.executable, "-c", BOOT, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=_environment(work),
                start_new_session=True,  # Ctrl-C is for the benchmark, which ends its workers
            )
        except OSError as error:
            self._errors.close()
            raise Lost(f"cannot start {python}: {error.strerror}") from error
        try:
            self.facts: dict[str, Any] = self._answer(patience)["ready"]
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    def ask(self, do: str, seconds: float, at_least: int = 3, patience: float = ANSWER_PATIENCE_S) -> dict[str, Any]:
        """Return what `serve.window` does of one window of work. Raises Lost, with the process ended."""
        request = json.dumps({"do": do, "seconds": seconds, "at_least": at_least}) + "\n"
        assert self._process.stdin is not None
        if self._process.stdin.closed:
            raise Lost("was ended before")
        try:
            self._process.stdin.write(request.encode())
            self._process.stdin.flush()
            return self._answer(seconds * 1.25 + patience)
        except OSError:  # it is gone, and what it left on standard error is the better message
            raise Lost(self._obituary()) from None
        except BaseException:
            self.close()
            raise

    def _answer(self, patience: float) -> dict[str, Any]:
        """Return the next line it writes, which must come within `patience` [s]."""
        assert self._process.stdout is not None
        deadline = time.monotonic() + patience
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise Lost(f"gave no answer within {patience:g} s; stopped")
                more = os.read(self._process.stdout.fileno(), 1 << 16)
                if not more:
                    raise Lost(self._obituary())
                self._unread += more
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "missing" in answer:
            raise Lost(f"not installed: {answer['missing']}")
        if "error" in answer:
            raise Lost(str(answer["error"]))
        return answer

    def _obituary(self) -> str:
        """Return how it ended, with the last line it left on standard error."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_PATIENCE_S)
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"died with exit code {self._process.returncode}" + (f": {lines[-1]}" if lines else "")

    def close(self) -> None:
        """End the process and let go of its pipes; a second call does nothing."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(0.2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_PATIENCE_S)
        self._errors.close()


def _environment(work: Work) -> dict[str, str]:
    """Return this process's environment with the thread count, and the device, that the work names."""
    chosen = dict(os.environ) | {name: str(work.threads) for name in THREADS}
    if work.threads == 1:
        chosen["XLA_FLAGS"] = f"{chosen.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    if work.device == "cpu":
        chosen["JAX_PLATFORMS"] = "cpu"
    return chosen
