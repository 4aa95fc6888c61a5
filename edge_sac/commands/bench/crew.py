"""The processes of one comparison: built one after the other, named when they cannot be, all ended at its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from edge_sac.commands.bench.candidate import Work
from edge_sac.commands.bench.cpu_load import quiet_cpus
from edge_sac.commands.bench.peers import PEERS, module
from edge_sac.commands.bench.worker import Lost, Worker


@dataclass
class Crew:
    """Candidates by name, and why each peer that is not among them is missing."""

    workers: dict[str, Worker] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, module: str, work: Work, *, anywhere: bool = False) -> Worker:
        """Build one of ours, on as many processors as it has threads unless it may run anywhere. Raises Lost."""
        try:
            self.workers[name] = Worker(module, work, cpus=() if anywhere else _start_cpus(work))
        except Lost as error:
            raise Lost(f"{name}: {error}") from error
        return self.workers[name]

    def add_peer(self, peer: str, work: Work, python: str | None, *, name: str = "", anywhere: bool = False) -> bool:
        """Build a peer in its interpreter; return whether it is there, its absence being no error."""
        try:
            cpus = () if anywhere else _start_cpus(work)
            self.workers[name or peer] = Worker(module(peer), work, python=python, cpus=cpus)
        except Lost as error:
            self.missing[peer] = str(error)
            return False
        return True

    def add_peers(self, work: Work, python: str | None) -> list[str]:
        """Build every peer there is; return the names of those."""
        return [peer for peer in PEERS if self.add_peer(peer, work, python)]

    def versions(self) -> dict[str, dict[str, str]]:
        """Return what each candidate says it is made of."""
        return {name: worker.facts["versions"] for name, worker in self.workers.items() if "versions" in worker.facts}


@contextmanager
def crew() -> Iterator[Crew]:
    """Return an empty crew whose processes end with the block."""
    made = Crew()
    try:
        yield made
    finally:
        for worker in made.workers.values():
            worker.close()


def _start_cpus(work: Work) -> list[int]:
    """Return as many processors as the work has threads: some libraries size their pools by what they start on."""
    return quiet_cpus(0.0)[0][: work.threads]
