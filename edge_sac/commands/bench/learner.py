"""Our learner as a candidate: an agent, and a full replay that its batches come from."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from edge_sac.commands.bench.candidate import Candidate, Stages, Work

if TYPE_CHECKING:
    from edge_sac.config import Config

# Each part is imported in `build`, so that what every stage adds to the process can be told apart.


def settings(work: Work) -> Config:
    """Return the settings of a variant such as `fp16` or `fp16/target=kahan/seed=1`: a precision, then keys of Config.

    Raises ConfigError for a precision, a key or a value there is not, and for what does not fit together.
    """
    from edge_sac.config import parse_config
    from edge_sac.errors import ConfigError
    from edge_sac.precision import precision_of

    name, *options = work.variant.split("/")
    given: dict[str, Any] = {"precision": name, "threads": work.threads}
    for option in options:
        key, equals, value = option.partition("=")
        if not equals:
            raise ConfigError(f"{work.variant}: {option!r} is no key=value; write fp16/target=kahan")
        try:
            given[key] = json.loads(value)
        except json.JSONDecodeError:
            given[key] = value
    given["agent"] = {"hidden": list(work.hidden), "batch": work.batch}
    config = parse_config("", work.variant, given)
    precision_of(config)
    return config


def build(work: Work) -> Candidate:
    """Return a learner as `edge-sac train` would make it for these settings."""
    stages = Stages()
    from edge_sac.openmp import wait_passively

    wait_passively(os.environ)
    import torch

    stages.passed("torch")
    import numpy as np

    from edge_sac import __version__
    from edge_sac.agent import Agent
    from edge_sac.commands.bench.buffers import by_role, held_bytes, state_bytes, unreached_bytes
    from edge_sac.commands.bench.storing import fill, make_replay
    from edge_sac.cuda_graph import recorder_for
    from edge_sac.device import choose_device
    from edge_sac.engine import Engine
    from edge_sac.half_matmul import probe
    from edge_sac.host_memory import keep_freed_memory
    from edge_sac.precision import precision_of
    from edge_sac.working_copy import sampler_for, source_for

    stages.passed("imports")
    config = settings(work)
    torch.set_num_threads(work.threads)
    keep_freed_memory()
    device = choose_device(work.device)
    chosen = precision_of(config)
    path = probe(device, chosen.dtype)
    agent = Agent(work.obs, work.action, config.agent, chosen, path, device, seed=0)
    stages.passed("learner")
    replay = make_replay(work, config.storage or chosen.storage)
    fill(replay, work)
    sampler = sampler_for(agent, replay, config)
    stages.passed("replay")
    source, drawing = source_for(agent, replay, sampler, np.random.default_rng(1), config)
    engine = Engine(agent, source, recorder_for(device, agent.generator))

    def update() -> None:
        engine.run(1)

    for _ in range(10):
        update()
    pieces = held_bytes(agent)
    facts = {
        "versions": {"edge-sac": __version__, "torch": torch.__version__, "numpy": np.__version__},
        "path": path.reason,
        "drawing": drawing,
        "stages": stages.resident,
        "pieces": pieces,
        "roles": by_role(pieces),
        "state": state_bytes(agent),
        "unreached": unreached_bytes(agent),
        "bytes_per_transition": replay.bytes_per_transition,
    }
    cuda = device.type == "cuda"

    def report() -> dict[str, Any]:
        return {"cuda_peak": torch.cuda.max_memory_allocated()} if cuda else {}

    return Candidate({"update": update}, facts, torch.cuda.synchronize if cuda else None, report)
