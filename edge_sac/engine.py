"""Runs the learner's updates; on CUDA several are one replay of a graph that was recorded once.

A recording repeats the operations of some updates on the same memory. What decides which operations these are is not
the data but how many updates there are and which of them move the target, so there is one recording for each such
pattern, made when it first comes up: with the target following every second update and one update a step, two.
Everything an update changes is memory of the agent's that stays where it is, so a restored agent goes on with the
recordings it has. What a recording cannot hold is what the host counts: the number of updates, and which tensors hold
the last update's metrics.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from edge_sac.agent import Agent, LastUpdate
from edge_sac.out_of_memory import words_of
from edge_sac.sources import Source

LONGEST = 16
"""Updates in one recording at the most: beyond, starting it costs nothing beside it."""
WARM = 3
"""Updates made before anything is recorded: libraries set themselves up in the first ones, which cannot be recorded."""


class Recorder(Protocol):
    """Records what a call does on a device, to be repeated."""

    def warm(self, call: Callable[[], None]) -> None:
        """Make a call where recordings will be made."""

    def record(self, call: Callable[[], None]) -> Callable[[], None]:
        """Return what does on the device what `call` would have done; nothing is done there yet."""


@dataclass(frozen=True)
class _Recording:
    repeat: Callable[[], None]
    last: LastUpdate
    """Where the last update's metrics lie after it."""


class Engine:
    """Runs updates of one agent on batches of one source; without a recorder, or until it is warm, one by one."""

    def __init__(self, agent: Agent, source: Source, recorder: Recorder | None = None) -> None:
        self._agent, self._source, self._recorder = agent, source, recorder
        self._recordings: dict[tuple[bool, ...], _Recording] = {}
        self._warmth = 0
        self._news = ""

    def run(self, updates: int) -> None:
        """Make that many updates."""
        while updates > 0:
            count = min(updates, self._source.at_once, LONGEST)
            self._source.before()
            self._make(count)
            self._source.after()
            updates -= count

    def news(self) -> str:
        """Return a line for the user that was not returned before, or an empty one."""
        news, self._news = self._news, ""
        return news

    def _make(self, count: int) -> None:
        if self._recorder is None:
            self._update(count)
        elif self._warmth < WARM:
            self._warmth += count
            self._recorder.warm(lambda: self._update(count))
        else:
            self._repeat(self._recorder, count)

    def _update(self, count: int) -> None:
        for _ in range(count):
            self._agent.update(self._source.batch())

    def _repeat(self, recorder: Recorder, count: int) -> None:
        pattern = self._pattern(count)
        if pattern not in self._recordings:
            try:
                self._recordings[pattern] = self._record(recorder, count)
            except RuntimeError as error:
                if words_of(error):
                    raise
                self._recorder = None
                reason = str(error).partition("\n")[0]
                self._news = f"updates go on one by one: they could not be recorded as a graph ({reason})"
                self._update(count)
                return
        found = self._recordings[pattern]
        found.repeat()
        self._agent.updates += count
        self._agent.last = found.last

    def _pattern(self, count: int) -> tuple[bool, ...]:
        """Return which of the next updates move the target."""
        first = self._agent.updates + 1
        return tuple(update % self._agent.config.target_period == 0 for update in range(first, first + count))

    def _record(self, recorder: Recorder, count: int) -> _Recording:
        agent = self._agent
        updates, last = agent.updates, agent.last
        agent.last = copy.copy(last)
        try:
            return _Recording(recorder.record(lambda: self._update(count)), agent.last)
        finally:
            # What was recorded has not happened yet.
            agent.updates, agent.last = updates, last
