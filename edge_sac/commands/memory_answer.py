"""What a run answers when memory runs out: what to shrink, the largest first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from edge_sac.agent import actor_shape
from edge_sac.config import Config
from edge_sac.contract import Contract
from edge_sac.errors import EdgeSacError, Refused
from edge_sac.networks import Mlp
from edge_sac.out_of_memory import words_of
from edge_sac.precision import precision_of
from edge_sac.storage import shape_of

LEANER = {"precision": "fp16", "storage": "u8", "moments": "8bit", "gradients": "in-place"}
"""Settings that take less, by key."""


@dataclass(frozen=True)
class Held:
    """About what the settings of a run make it hold, in bytes."""

    replay: int
    """Exactly, of the map; a working copy on a GPU takes as much again."""
    networks: int
    """Parameters, gradients, moments and targets, before any leaner setting."""
    passes: int
    """Activations and their gradients, which grow with the batch."""


def held(config: Config, obs_dim: int, action_dim: int) -> Held:
    """Return what a run holds; raises ConfigError or ReplayError for settings that cannot be."""
    chosen = precision_of(config)
    hidden = tuple(config.agent.hidden)
    actor, critic = actor_shape(obs_dim, action_dim, hidden), Mlp(2, (obs_dim + action_dim, *hidden, 1))
    # theta, gradient, m, w or v, target, and in half precision a compensation
    numbers = 5 if chosen.dtype.itemsize == 4 else 6
    widths = 2 * sum(actor.sizes[1:]) + 4 * sum(critic.sizes[1:]) + 3 * critic.sizes[0]
    replay = shape_of(config.replay_capacity, obs_dim, action_dim, config.storage or chosen.storage)
    return Held(
        replay.map_bytes, numbers * chosen.dtype.itemsize * (actor.size + critic.size), 4 * widths * config.agent.batch
    )


def answer(error: Exception, config: Config, contract: Contract) -> str:
    """Return what to shrink if memory ran out; empty for any other error, and for one that was answered already."""
    words = "" if isinstance(error, EdgeSacError) else words_of(error)
    if not words:
        return ""
    what = held(config, len(contract.observation), len(contract.action))
    hidden = ", ".join(map(str, config.agent.hidden))
    choices = [
        (what.replay, f"replay_capacity ({config.replay_capacity}: {_mib(what.replay)})"),
        (what.networks, f"agent.hidden ([{hidden}]: {_mib(what.networks)})"),
        (what.passes, f"agent.batch ({config.agent.batch}: {_mib(what.passes)})"),
    ]
    lower = ", ".join(text for _, text in sorted(choices, key=lambda choice: -choice[0]))
    leaner = [f"{name} = {value!r}" for name, value in LEANER.items() if getattr(config, name) != value]
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


def _mib(count: int) -> str:
    return f"{count / 2**20:.1f} MiB"
