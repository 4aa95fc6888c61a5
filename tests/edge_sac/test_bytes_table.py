"""The published bytes per parameter are the code's, and keep the bars that were set for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from edge_sac.agent import Agent
from edge_sac.commands.bytes_table import ACTION, OBS, VARIANTS, WIDE, bytes_table
from edge_sac.config import AgentConfig, Config
from edge_sac.half_matmul import MatmulPath
from edge_sac.precision import precision_of

PAGE = Path(__file__).parents[2] / "docs" / "performance.md"


def rows() -> dict[str, list[str]]:
    lines = bytes_table().splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: rest for name, *rest in cells}


def test_committed_table_is_the_code_s() -> None:
    assert bytes_table() in PAGE.read_text(encoding="utf-8")


def test_fp16_takes_at_most_061_of_fp32_s_state_and_the_leanest_045() -> None:
    found = rows()
    assert float(found["fp16"][8]) <= 0.61
    assert float(found["leanest"][8]) <= 0.45
    assert float(found["leanest"][10]) <= 0.45  # scratch counted as well


@pytest.mark.parametrize("name", VARIANTS)
def test_bytes_of_a_row_are_a_learner_s(name: str) -> None:
    config = Config(device="cpu", agent=AgentConfig(hidden=(64, 64), batch=16), **VARIANTS[name])
    chosen = precision_of(config)
    path = MatmulPath(chosen.dtype, torch.float32, "test")
    agent = Agent(OBS, ACTION, config.agent, chosen, path, torch.device("cpu"), seed=0)
    _, _, _, _, _, critic, actor, *_ = rows()[name]
    for per_parameter, optim, beside in (
        (critic, agent.critic_optim, agent.target.state()),
        (actor, agent.actor_optim, {}),
    ):
        tensors = [*optim.state().values(), *beside.values(), *([] if optim.grad is None else [optim.grad])]
        held = sum(tensor.nbytes for tensor in tensors if tensor.numel() >= len(optim.theta))
        assert held == float(per_parameter) * len(optim.theta)


def test_state_is_that_of_the_widest_learner() -> None:
    critic, actor = (
        2 * ((OBS + ACTION) * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 + 1),
        OBS * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 2 * ACTION + 2 * ACTION,
    )
    assert WIDE.hidden == (1024, 1024)
    # Padding of each matrix and bias to 8 elements is beyond the count of parameters.
    size = int(rows()["fp32"][7].replace(",", ""))
    assert 20 * critic + 16 * actor <= size <= 20 * (critic + 48) + 16 * (actor + 48)
