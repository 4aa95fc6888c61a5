"""The floor is of the very products the update performs."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from edge_sac.agent import Agent, Batch
from edge_sac.commands.bench import floor
from edge_sac.commands.bench.candidate import Work
from edge_sac.commands.bench.storing import fill, make_replay
from edge_sac.config import AgentConfig
from edge_sac.half_matmul import MatmulPath
from edge_sac.precision import precision

PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1}
"""Operators that multiply matrices, and where their first factor stands."""


class Products(TorchDispatchMode):
    """Counts matrix products by shape; a batched one counts once for each of its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[floor.Shape] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func._schema.name.removeprefix("aten::").rstrip("_")
        if name in PRODUCTS:
            a, b = args[PRODUCTS[name] : PRODUCTS[name] + 2]
            self.seen[floor.Shape(a.shape[-2], a.shape[-1], b.shape[-1])] += a.shape[0] if a.dim() == 3 else 1
        elif name == "mul" and all(torch.is_tensor(part) and part.dim() == 3 for part in args):
            # A column times a row is a product too.
            a, b = args
            if a.shape[-1] == b.shape[-2] == 1:
                self.seen[floor.Shape(a.shape[-2], 1, b.shape[-1])] += a.shape[0]
        return func(*args, **(kwargs or {}))


def comparable(products: Counter[floor.Shape], batch: int) -> Counter[tuple[int, int, int]]:
    """Return the products with the longer side first, since a product and its transpose are the same work.

    One on two batches at once is two, as the policy's on both observations.
    """
    found: Counter[tuple[int, int, int]] = Counter()
    for (rows, inner, columns, _), count in products.items():
        times = 2 if rows == 2 * batch else 1
        rows //= times
        found[(max(rows, columns), inner, min(rows, columns))] += times * count
    return found


@pytest.mark.parametrize("name", ["fp32", "fp16"])
def test_list_is_that_of_the_products_an_update_performs(name):
    work = Work(hidden=(24, 40), batch=16, transitions=64, obs=5, action=3)
    chosen = precision(name)
    cpu = torch.device("cpu")
    config = AgentConfig(hidden=work.hidden, batch=work.batch)
    path = MatmulPath(chosen.dtype, torch.float32, "")
    agent = Agent(work.obs, work.action, config, chosen, path, cpu, seed=0)
    replay = make_replay(work, chosen.storage)
    fill(replay, work)
    batch = Batch.of(
        replay.sampler(work.batch, gamma=0.99, dtype=chosen.replay_dtype).draw(np.random.default_rng(0)), cpu
    )
    with Products() as products:
        agent.update(batch)
    assert comparable(products.seen, work.batch) == comparable(Counter(floor.shapes(work)), work.batch)


def test_work_is_counted_by_hand_for_one_hidden_layer():
    work = Work(hidden=(4,), batch=2, obs=3, action=1)
    # Actor 3-4-2, critics 4-4-1; a product [m, k] [k, n] is 2 m k n.
    actor, critic = 2 * 2 * (3 * 4 + 4 * 2), 2 * 2 * (4 * 4 + 4 * 1)
    actor_back = actor + 2 * 2 * 4 * 2  # every weight, and what the last layer passes on
    critic_back = critic + 2 * 2 * 4 * 1
    to_action = 2 * 2 * (4 * 1 + 4 * 1)
    expected = 2 * actor + 2 * 3 * critic + 2 * critic_back + 2 * to_action + actor_back
    assert floor.flops(floor.shapes(work)) == expected
    assert floor.operand_bytes([floor.Shape(2, 3, 4)], 2) == 2 * (2 * 3 + 3 * 4 + 2 * 4)


def test_published_size_has_45_products():
    assert len(floor.shapes(Work())) == 45
