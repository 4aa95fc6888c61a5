"""Every byte a learner holds is counted once, under the name it is reached by."""

from __future__ import annotations

import json

import torch
from rich.console import Console

from edge_sac.commands.bench.buffers import by_role, held_bytes, unreached_bytes
from edge_sac.commands.bench.candidate import Work
from edge_sac.commands.bench.memory import MemorySettings, bench_memory
from edge_sac.loss_scale import LossScale
from edge_sac.optim import HAdam


def test_pieces_are_counted_once_whatever_views_there_are():
    optim = HAdam(torch.zeros(1000), LossScale(torch.device("cpu"), enabled=False), lr=1e-3, kahan=True)
    pieces = held_bytes(optim)
    assert pieces["theta"] == pieces["grad"] == pieces["compensation"] == 4000
    assert pieces["moments"] == 8000
    assert "m" not in pieces  # a view of moments
    assert by_role({"critic.theta": 4000, "actor.theta": 2000, "critic.target.lag": 3000, "a.scale": 4, "b.t": 8}) == {
        "theta": 6000,
        "target": 3000,
        "scalars": 12,
    }


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
        stages = list(row["stages"].values())
        assert stages == sorted(stages)
        assert stages[-1] <= row["peak"]
    assert single["roles"]["theta"] == 2 * half["roles"]["theta"]
    assert single["roles"]["target"] == 2 * half["roles"]["target"]
    assert f"{half['total']:,}" in console.export_text()
