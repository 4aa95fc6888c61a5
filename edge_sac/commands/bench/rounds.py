"""Turns of work, round after round, and what their medians come to; ratios never leave a round."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from edge_sac.commands.bench.cpu_load import CLEAN_CORES, BusyCore, Others, pin, quiet_cpus
from edge_sac.commands.bench.worker import Lost, Worker

PATIENCE_S = 30.0
"""How long all rounds together wait for others to be quiet; after that they are measured as they are."""


@dataclass(frozen=True)
class Turn:
    """One candidate's part of each round."""

    name: str
    worker: Worker
    do: str
    busy: bool = False
    """With a busy process on one core; such turns, and those they are compared with, run on any core."""
    pinned: bool = True
    """On as many of the quietest cores as the work has threads, as every other candidate of the round."""
    needed: bool = True
    """Whether there is no result without it; a peer may be lost."""


@dataclass(frozen=True)
class Window:
    """What one turn came to."""

    per_second: float
    p50: float
    p99: float
    """Of one operation [s]."""
    cpu: float
    """Processor time of one operation [s]: what still compares on one thread where others take the processor away."""
    cores: float
    """That the candidate itself used."""
    others: float
    """That processes not ours used meanwhile."""
    joules: float | None
    """Per operation, of all that the sensor sees; None where there is no sensor."""
    resident: int
    peak: int
    """Bytes, of the candidate's process."""

    @property
    def clean(self) -> bool:
        """Whether others were quiet."""
        return self.others < CLEAN_CORES


@dataclass
class Rounds:
    """The windows of every round by name, and who was lost on the way."""

    windows: list[dict[str, Window]] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)

    def judged(self) -> list[dict[str, Window]]:
        """Return the clean rounds, or all where fewer than half are clean."""
        clean = [window for window in self.windows if _clean(window)]
        return clean if 2 * len(clean) >= len(self.windows) else self.windows

    def note(self) -> str:
        """Return, in a line, how many rounds the medians are of and whether they were clean."""
        clean, total = sum(map(_clean, self.windows)), len(self.windows)
        if clean == total:
            return f"medians of {total} rounds, all clean"
        worst = max(window.others for round_ in self.windows for window in round_.values())
        judged = f"the {clean} clean" if 2 * clean >= total else f"all {total}, most of them not clean,"
        return f"medians of {judged} of {total} rounds: other processes used up to {worst:.2f} cores in a window"

    def median(self, name: str, of: Callable[[Window], float | None]) -> float | None:
        """Return the median over the judged rounds of a number of a window; None where there is none."""
        found = [of(window[name]) for window in self.judged() if name in window]
        known = [value for value in found if value is not None]
        return statistics.median(known) if known else None

    def ratio(self, name: str, base: str) -> float | None:
        """Return the median over the judged rounds of the rate of `name` over that of `base` in the same round."""
        found = [
            window[name].per_second / window[base].per_second
            for window in self.judged()
            if name in window and base in window
        ]
        return statistics.median(found) if found else None

    def row(self, name: str) -> dict[str, Any]:
        """Return the medians of one candidate."""
        return {
            "name": name,
            "per_second": self.median(name, lambda window: window.per_second),
            "p50_s": self.median(name, lambda window: window.p50),
            "p99_s": self.median(name, lambda window: window.p99),
            "cpu_s": self.median(name, lambda window: window.cpu),
            "cores": self.median(name, lambda window: window.cores),
            "joules": self.median(name, lambda window: window.joules),
        }

    def raw(self) -> list[dict[str, Any]]:
        """Return every window, for the file."""
        return [{name: asdict(window) for name, window in round_.items()} for round_ in self.windows]


def _clean(round_: dict[str, Window]) -> bool:
    return all(window.clean for window in round_.values())


@dataclass(frozen=True)
class Pace:
    """How many rounds there are, how long each turn is [s], and what measures the energy."""

    rounds: int = 5
    seconds: float = 1.0
    joules: Callable[[], float] | None = None
    """The energy used since some moment [J]."""
    patience: float = PATIENCE_S


def run_rounds(turns: Sequence[Turn], pace: Pace, busy: BusyCore | None = None) -> Rounds:
    """Return what `turns` came to when each had its window in each round, in their order.

    A candidate that is lost and not needed is named, with every turn it would have had, and left out of what follows;
    for one that is needed, Lost is raised.
    """
    result, patience = Rounds(), pace.patience
    for _ in range(pace.rounds):
        cpus, waited = quiet_cpus(patience)
        patience -= waited
        round_: dict[str, Window] = {}
        for turn in turns:
            if turn.name in result.lost:
                continue
            try:
                round_[turn.name] = _take(turn, pace, cpus, busy)
            except Lost as error:
                if turn.needed:
                    raise Lost(f"{turn.name}: {error}") from error
                result.lost |= {other.name: str(error) for other in turns if other.worker is turn.worker}
        if round_:
            result.windows.append(round_)
    return result


def _take(turn: Turn, pace: Pace, cpus: Sequence[int], busy: BusyCore | None) -> Window:
    worker = turn.worker
    pin(worker.pid, cpus[: worker.work.threads] if turn.pinned else cpus)
    if turn.busy:
        assert busy is not None
        busy.go()
    try:
        others = Others([worker.pid, *([busy.pid] if busy is not None else [])])
        joules = pace.joules() if pace.joules is not None else 0.0
        answer = worker.ask(turn.do, pace.seconds)
        used = pace.joules() - joules if pace.joules is not None else None
        cores = others.cores()
    finally:
        if turn.busy and busy is not None:
            busy.stop()
    return Window(
        per_second=answer["done"] / answer["wall"],
        p50=answer["p50"],
        p99=answer["p99"],
        cpu=answer["cpu"] / answer["done"],
        cores=answer["cpu"] / answer["wall"],
        others=cores,
        joules=None if used is None else used / answer["total"],
        resident=answer["resident"],
        peak=answer["peak"],
    )
