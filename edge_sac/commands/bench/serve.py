"""A candidate's process: builds it once, then answers each request for a window of work with one line of JSON.

The standard library alone, for a peer's interpreter. Standard output belongs to the answers; whatever the candidate
prints goes to standard error. The process ends when its input does, so it never outlives whoever started it by more
than the window it is in.
"""

from __future__ import annotations

import json
import os
import sys
import time
from array import array
from importlib import import_module
from typing import Any

from edge_sac.commands.bench.candidate import Candidate, Work, memory


def main(module: str, work: str, cpus: str) -> None:
    """Serve the candidate that `module`.build(work) returns, on the given CPUs (comma-separated; empty: all)."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    if cpus:
        os.sched_setaffinity(0, {int(cpu) for cpu in cpus.split(",")})

    def answer(record: dict[str, Any]) -> None:
        answers.write(json.dumps(record) + "\n")
        answers.flush()

    try:
        candidate: Candidate = import_module(module).build(Work.from_json(work))
    except ImportError as error:
        answer({"missing": str(error)})
        return
    except Exception as error:  # whatever another project's constructor raises is the finding
        answer({"error": f"{type(error).__name__}: {error}"})
        return
    answer({"ready": candidate.facts})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer(window(candidate, request["do"], request["seconds"], request["at_least"]))
        except Exception as error:  # likewise
            answer({"error": f"{type(error).__name__}: {error}"})
            return


def window(candidate: Candidate, do: str, seconds: float, at_least: int) -> dict[str, Any]:
    """Return how one operation, repeated for `seconds` and `at_least` so many times, went.

    `done` in `wall` [s] with `cpu` [s] of this process, `total` with those not timed; p50 and p99 [s] of one operation,
    waited for; resident (as the window began) and peak memory [B]. The first two operations are not counted: they
    refill the caches that another candidate emptied.
    """
    operation = candidate.operations[do]
    operation()
    operation()
    if candidate.wait is not None:
        candidate.wait()
    resident, cpu = memory("VmRSS"), time.process_time()
    start = last = time.perf_counter()
    taken = array("d")
    while last - start < seconds or len(taken) < at_least:
        operation()
        now = time.perf_counter()
        taken.append(now - last)
        last = now
    done = len(taken)
    if candidate.wait is not None:
        candidate.wait()
        last = time.perf_counter()
    cpu = time.process_time() - cpu
    total = done + 2
    if candidate.wait is not None:
        taken = _waited(candidate, do, seconds / 4)
        total += len(taken)
    ordered = sorted(taken)
    return {
        "done": done,
        "total": total,
        "wall": last - start,
        "cpu": cpu,
        "p50": ordered[len(ordered) // 2],
        "p99": ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))],
        "resident": resident,
        "peak": memory("VmHWM"),
        "report": candidate.report(),
    }


def _waited(candidate: Candidate, do: str, seconds: float) -> array[float]:
    """Return the time of each operation when every one is waited for, which the rate must not be."""
    operation, wait = candidate.operations[do], candidate.wait
    assert wait is not None
    taken = array("d")
    start = last = time.perf_counter()
    while last - start < seconds or len(taken) < 3:
        operation()
        wait()
        now = time.perf_counter()
        taken.append(now - last)
        last = now
    return taken
