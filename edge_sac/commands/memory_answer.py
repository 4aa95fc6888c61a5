"""What a run answers when memory runs out: what to shrink, the largest first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import torch

from edge_sac.byte_size import mebibytes
from edge_sac.config import Config
from edge_sac.contract import Contract
from edge_sac.errors import EdgeSacError, Refused
from edge_sac.memory_fit import savings
from edge_sac.out_of_memory import words_of
from edge_sac.plan import Sizes, plan_of


def answer(error: Exception, config: Config, contract: Contract) -> str:
    """Return what to shrink if memory ran out; empty for any other error, and for one that was answered already."""
    words = "" if isinstance(error, EdgeSacError) else words_of(error)
    if not words:
        return ""
    if config.device == "auto":
        config = msgspec.structs.replace(config, device="cpu")
    sizes = Sizes(len(contract.observation), len(contract.action), torch.float32)
    plan = plan_of(config, sizes)
    replay, networks, passes = plan.of("replay"), plan.of("state"), plan.of("passes")
    hidden = ", ".join(map(str, config.agent.hidden))
    choices = [
        (replay, f"replay_capacity ({config.replay_capacity}: {mebibytes(replay)})"),
        (networks, f"agent.hidden ([{hidden}]: {mebibytes(networks)})"),
        (passes, f"agent.batch ({config.agent.batch}: {mebibytes(passes)})"),
    ]
    lower = ", ".join(text for _, text in sorted(choices, key=lambda choice: -choice[0]))
    leaner = [line for line, _ in savings(config, sizes)]
    choose = f", or choose {', '.join(leaner)}" if leaner else ""
    return f"out of memory on {config.device} ({words}): close other programs, lower {lower}{choose}"


@contextmanager
def answered(config: Config, contract: Contract) -> Iterator[None]:
    """Raise Refused with what to shrink where memory runs out inside; any other error passes."""
    try:
        yield
    except Exception as error:
        told = answer(error, config, contract)
        if told:
            raise Refused(told) from error
        raise
