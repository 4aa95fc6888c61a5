"""Our replay as a candidate, and random transitions to fill one with."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edge_sac.commands.bench.candidate import Candidate, Work
from edge_sac.replay import Replay

GAMMA = 0.99
"""Goes into what a sampler draws; its value costs nothing."""
CHUNK = 10_000
ENDS = 0.01
"""Share of transitions that end an episode, as those of a walker that falls over."""
Array = NDArray[np.float32]


class Transitions(NamedTuple):
    """Some transitions in one episode after the other."""

    obs: Array  # [N + 1, O]: obs[i + 1] follows obs[i]
    action: Array  # [N, A]
    reward: Array  # [N]
    terminated: NDArray[np.bool_]  # [N]


def transitions(work: Work, count: int, rng: np.random.Generator) -> Transitions:
    """Return random transitions: nothing in a benchmark depends on their values, but on their being all different."""
    return Transitions(
        rng.standard_normal((count + 1, work.obs), dtype=np.float32),
        rng.uniform(-1, 1, (count, work.action)).astype(np.float32),
        rng.standard_normal(count, dtype=np.float32),
        rng.random(count) < ENDS,
    )


def make_replay(work: Work, storage: str) -> Replay:
    """Return an empty replay in memory."""
    return Replay(work.transitions, work.obs, work.action, storage)


def fill(replay: Replay, work: Work) -> None:
    """Add as many transitions as `replay` holds."""
    for add in itertools.islice(_adds(replay, work), work.transitions):
        add()


def _adds(replay: Replay, work: Work) -> Iterator[_Add]:
    """Return, without end, what adds one transition each."""
    rng = np.random.default_rng(0)
    while True:
        some = transitions(work, CHUNK, rng)
        for i in range(CHUNK):
            yield _Add(replay, some, i)
        replay.cut()


class _Add(NamedTuple):
    replay: Replay
    some: Transitions
    i: int

    def __call__(self) -> None:
        obs, action, reward, terminated = self.some
        i = self.i
        self.replay.add(obs[i], action[i], float(reward[i]), bool(terminated[i]), False, obs[i + 1])


def build(work: Work) -> Candidate:
    """Return a full replay of one storage that transitions are added to and batches, in float32, drawn from."""
    replay = make_replay(work, work.variant)
    fill(replay, work)
    some = transitions(work, CHUNK, np.random.default_rng(2))
    turn = itertools.cycle(range(CHUNK))
    rng = np.random.default_rng(1)
    sampler = replay.sampler(work.batch, gamma=GAMMA)

    def add() -> None:
        i = next(turn)
        if i == 0:
            replay.cut()
        _Add(replay, some, i)()

    facts = {"bytes_per_transition": replay.bytes_per_transition, "versions": {"numpy": np.__version__}}
    return Candidate({"add": add, "sample": lambda: sampler.draw(rng)}, facts)
