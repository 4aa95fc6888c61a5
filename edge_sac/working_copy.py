"""Where an engine's batches are drawn: by the host on a CPU, by the device elsewhere, as far as its memory goes.

A copy in the device's memory is the fastest to read on a graphics card; on a board whose GPU shares the host's memory
a pinned one may be as good. Which it is, is measured on a part of the size (not measured on a GPU yet).
"""

from __future__ import annotations

import time

import numpy as np
import torch

from edge_sac.agent import Agent
from edge_sac.config import Config
from edge_sac.device_memory import Column, DeviceColumn, PinnedColumn
from edge_sac.device_replay import DeviceReplay, MakeColumn
from edge_sac.memory_available import available_memory
from edge_sac.replay import Replay
from edge_sac.sampler import Sampler
from edge_sac.sources import DeviceSource, HostSource, Source, static_batch

ROOM = 0.8
"""Of what is free, for the copy: the rest is for the update's own memory and for other programs."""
MARGIN = 1.1
"""How much faster pinned memory must be: the device's own takes no bus."""
SAMPLE = 64 * 2**20
"""Bytes that reading is timed on: beyond any cache."""
REPEATS = 20


def sampler_for(agent: Agent, replay: Replay, config: Config) -> Sampler:
    """Return what draws the agent's batches from a replay, as a run's settings say."""
    return replay.sampler(
        config.agent.batch,
        gamma=config.agent.gamma,
        n_step=config.agent.n_step,
        prioritized=config.sampling == "prioritized",
        dtype=agent.precision.replay_dtype,
    )


def source_for(
    agent: Agent, replay: Replay, sampler: Sampler, rng: np.random.Generator, config: Config
) -> tuple[Source, str]:
    """Return where the agent's batches come from, and a line that says so where there is a choice."""
    prioritized = config.sampling == "prioritized"

    def rank() -> None:
        sampler.prioritize(agent.td_error.cpu().numpy())

    static = None
    if agent.device.type != "cpu":
        shape = config.agent.batch, agent.obs_dim, agent.action_dim
        static = static_batch(*shape, agent.precision.dtype, agent.device)
    on_host = HostSource(lambda: sampler.draw(rng), static, rank if prioritized else None)
    if static is None:
        return on_host, ""
    if prioritized:
        return on_host, "batches are drawn on the host, one for each update: that is where priorities are kept"
    column, reason = place(replay.ring.layout.slots * replay.bytes_per_transition, agent.device)
    if column is None:
        return on_host, f"batches are drawn on the host, one for each update: {reason}"
    copied = DeviceReplay(
        replay.ring,
        config.agent.batch,
        gamma=config.agent.gamma,
        n_step=config.agent.n_step,
        dtype=agent.precision.dtype,
        generator=agent.generator,
        column=column,
    )
    return DeviceSource(copied), f"batches are drawn on {agent.device.type}: {reason}"


def place(needed: int, device: torch.device) -> tuple[MakeColumn | None, str]:
    """Return what makes a working copy of `needed` bytes, or nothing, and why."""
    free = free_bytes(device)
    problem = pinned_problem(device)
    rows = min(needed, SAMPLE, int(ROOM * free)) // 64
    in_device = read_seconds(DeviceColumn((rows, 64), torch.uint8, device), device)
    in_host = float("inf") if problem else read_seconds(PinnedColumn((rows, 64), torch.uint8, device), device)
    return choose(needed, free, in_device, in_host, problem)


def choose(
    needed: int, free: int, in_device: float, in_host: float, problem: str = ""
) -> tuple[MakeColumn | None, str]:
    """Return the copy to make, given bytes needed and free and the time [s] to read a batch from either memory."""
    times = f"a batch is read in {1e6 * in_device:.0f} us from its memory, in {1e6 * in_host:.0f} us from pinned memory"
    if needed <= ROOM * free and in_device <= MARGIN * in_host:
        return DeviceColumn, f"{needed} bytes of {free} free; {problem or times}"
    if not problem:
        why = times if needed <= ROOM * free else f"{needed} bytes are too many for {free} free"
        return PinnedColumn, f"from pinned memory of the host: {why}"
    return None, f"{needed} bytes are too many for {free} free, and {problem}"


def free_bytes(device: torch.device) -> int:
    """Return what is free for a device; a GPU that shares the host's memory can have what the host has."""
    if getattr(torch.cuda.get_device_properties(device), "is_integrated", False):
        return available_memory().bytes
    return torch.cuda.mem_get_info(device)[0]


def pinned_problem(device: torch.device) -> str:
    """Return why pinned memory cannot be read by the device where it lies, or an empty string, tried."""
    try:
        column = PinnedColumn((64,), torch.uint8, device)
        column.write(0, torch.arange(64, dtype=torch.uint8))
        total = int(column.values.sum(dtype=torch.int64))
    except (RuntimeError, TypeError, ValueError) as error:
        return f"pinned memory cannot be read there ({str(error).partition(chr(10))[0]})"
    return "" if total == 63 * 32 else f"pinned memory is read wrong there (a sum of {total}, not {63 * 32})"


def read_seconds(column: Column, device: torch.device, batch: int = 256) -> float:
    """Return the shortest time [s] in which a batch of random rows [N, width] of a column is read."""
    index = torch.randint(len(column.values), (batch,), device=device)
    shortest = float("inf")
    for _ in range(REPEATS):
        synchronize(device)
        start = time.perf_counter()
        column.values.index_select(0, index)
        synchronize(device)
        shortest = min(shortest, time.perf_counter() - start)
    return shortest


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
