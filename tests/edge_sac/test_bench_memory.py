"""Every byte a learner holds is counted once, under the name it is reached by."""

from __future__ import annotations

import json

import torch
from rich.console import Console

from edge_sac.commands.bench.buffers import by_role, held_bytes, state_bytes, unreached_bytes
from edge_sac.commands.bench.candidate import Work
from edge_sac.commands.bench.memory import MemorySettings, bench_memory


class Holder:
    """A learner of this package's, as far as the search for tensors can tell."""

    __module__ = "edge_sac.anything"

    def __init__(self) -> None:
        self.target = {"psi": torch.zeros(1000), "lag": torch.zeros(1000, dtype=torch.float16)}
        self.theta = self.target["psi"][:]
        self.grad = torch.zeros(500)
        self._scratch = [torch.zeros(3000)]

    def state(self) -> dict[str, torch.Tensor]:
        return {"theta": self.theta, "lag": self.target["lag"]}


def test_pieces_are_counted_once_by_their_plainest_name_whatever_views_there_are():
    holder = Holder()
    assert held_bytes(holder) == {"theta": 4000, "target.lag": 2000, "grad": 2000, "_scratch.0": 12_000}
    assert state_bytes(holder) == 8000
    assert by_role({"critic.theta": 4000, "actor.theta": 2000, "critic.target.lag": 3000, "a.scale": 4, "b.t": 8}) == {
        "theta": 6000,
        "target": 3000,
        "scalars": 12,
    }
    assert by_role(held_bytes(holder))["scratch"] == 12_000


def test_tensor_that_nothing_leads_to_is_found():
    held, hidden = torch.zeros(1000), torch.zeros(3000)
    before = unreached_bytes([held, hidden])
    assert unreached_bytes([held]) - before == hidden.nbytes


def test_learner_and_its_process_are_broken_down(tmp_path):
    output = tmp_path / "memory.json"
    console = Console(record=True, width=160)
    work = Work(batch=16, transitions=500, device="cpu")
    assert bench_memory(MemorySettings(("fp32", "fp16"), (64,)), work, output, console) == 0
    single, half = json.loads(output.read_text())["rows"]
    for row in (single, half):
        assert row["total"] == sum(row["roles"].values()) == sum(row["pieces"].values())
        assert row["unreached"] == 0
        assert row["roles"]["theta"] + row["roles"]["grad"] < row["state"] < row["total"]
        stages = list(row["stages"].values())
        assert stages == sorted(stages)
        assert stages[-1] <= row["peak"]
    assert single["roles"]["theta"] == 2 * half["roles"]["theta"]
    assert half["state"] < single["state"]
    assert f"{half['total']:,}" in console.export_text()
