"""How many threads an update takes: as few as are about as fast as any, of the cores that are really free.

Fewer is the safer side: one thread waits for nobody, while two on a machine with a busy neighbour wait for the slower
of them at every operation. A further thread must therefore earn its core.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from edge_sac.agent import Agent
from edge_sac.config import AgentConfig
from edge_sac.free_cores import Cores, measure_cores
from edge_sac.half_matmul import MatmulPath
from edge_sac.precision import Precision
from edge_sac.sources import static_batch

MARGIN = 1.1
"""How much faster than fewer threads a larger number must be: above what repeated timings differ by."""
ROUNDS = 3
SECONDS = 0.03
"""[s] At least, of each timing; an update that takes longer is timed once."""
LONGEST = 8.0
"""[s] After which no further round is begun: a round of one update may take seconds on a small board."""


@dataclass(frozen=True)
class Threads:
    """A number of threads and why."""

    count: int
    reason: str


def candidates(free: int) -> list[int]:
    """Return the numbers of threads worth timing with `free` cores: powers of two, and all."""
    return sorted({free} | {2**i for i in range(free.bit_length()) if 2**i <= free})


def fastest(seconds: Mapping[int, float]) -> int:
    """Return the number of threads to take, given the time of an update with each: the fewest not clearly slower."""
    chosen = min(seconds)
    for count in sorted(seconds):
        if seconds[count] * MARGIN <= seconds[chosen]:
            chosen = count
    return chosen


def time_each(counts: Sequence[int], update: Callable[[], None]) -> dict[int, float]:
    """Return the shortest time [s] of `update` with each number of threads, timed in turn.

    What else runs on the machine can only add to a time, and in turns it meets all alike. torch's number of threads is
    left as it was found.
    """
    found = torch.get_num_threads()
    shortest = dict.fromkeys(counts, float("inf"))
    began = time.perf_counter()
    try:
        for _ in range(ROUNDS):
            for count in counts:
                torch.set_num_threads(count)
                # The first makes or wakes the threads.
                update()
                shortest[count] = min(shortest[count], _seconds(update))
            if time.perf_counter() - began > LONGEST:
                break
    finally:
        torch.set_num_threads(found)
    return shortest


def _seconds(update: Callable[[], None]) -> float:
    shortest, spent = float("inf"), 0.0
    while spent < SECONDS:
        start = time.perf_counter()
        update()
        taken = time.perf_counter() - start
        shortest, spent = min(shortest, taken), spent + taken
    return shortest


def probe_threads(
    obs_dim: int, action_dim: int, config: AgentConfig, chosen: Precision, path: MatmulPath, cores: Cores | None = None
) -> Threads:
    """Return the number of threads for updates of that size on the CPU, measured on an agent made for it and let go.

    No more than torch came with: OMP_NUM_THREADS is the user's word.
    """
    cores = cores or measure_cores()
    allowed = min(cores.free, torch.get_num_threads())
    if allowed == 1:
        return Threads(1, str(cores))
    device = torch.device("cpu")
    agent = Agent(obs_dim, action_dim, config, chosen, path, device, seed=0)
    batch = static_batch(config.batch, obs_dim, action_dim, chosen.dtype, device)
    seconds = time_each(candidates(allowed), lambda: agent.update(batch))
    times = ", ".join(f"{count}: {1e3 * taken:.1f} ms" for count, taken in seconds.items())
    return Threads(fastest(seconds), f"{cores}; an update with {times}")
