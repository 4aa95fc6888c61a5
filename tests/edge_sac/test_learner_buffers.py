"""What the plan says a learner holds is what it holds, byte by byte, in every combination of options."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator

import msgspec
import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from edge_sac.agent import Agent, Batch, critic_shape
from edge_sac.commands.bench.buffers import held_bytes, unreached_bytes
from edge_sac.config import AgentConfig
from edge_sac.errors import ConfigError
from edge_sac.half_matmul import MatmulPath
from edge_sac.learner_buffers import SCALARS, Buffer, learner_buffers
from edge_sac.precision import PRESETS, Precision, precision

CPU = torch.device("cpu")
OBS, ACTION = 5, 3
CONFIG = AgentConfig(hidden=(160, 40), batch=160)
SMALL = 512
"""Bytes: whatever is listed is more than this at these sizes, every scalar and all of log alpha's buffers less."""
ROLES = {
    "theta": "theta",
    "grad": "gradient",
    "m": "m, w",
    "v": "m, w",
    "ratio": "m, w",
    "root": "m, w",
    "moments.moments": "m, w",
    "rounding.compensation": "compensation",
    "target.lag": "lag",
    "target.scaled": "scaled target",
    "target.compensation": "target's compensation",
    "target.value": "target",
}
"""What the ends of paths through a learner are called in the plan."""


AXES = {
    "target": ("lag", "kahan", "plain"),
    "rounding": ("kahan", "stochastic", "nearest"),
    "moments": ("full", "8bit"),
    "gradients": ("whole", "in-place"),
}


def combinations(name: str) -> Iterator[Precision]:
    """Yield the number format with every combination of options that it takes."""
    for values in itertools.product(*AXES.values()):
        with contextlib.suppress(ConfigError):
            yield precision(name, **dict(zip(AXES, values, strict=True)))


COMBINATIONS = {
    "fp32": list(combinations("fp32")),
    "fp16": list(combinations("fp16")),
    "others": [precision("fp16", kahan_actor=False), *(precision(name) for name in PRESETS)],
}


def learner(chosen: Precision, compute: torch.dtype = torch.float32, config: AgentConfig = CONFIG) -> Agent:
    """Return a learner that has made two updates, so that the target has moved."""
    agent = Agent(OBS, ACTION, config, chosen, MatmulPath(chosen.dtype, compute, "test"), CPU, seed=0)
    for _ in range(2):
        agent.update(batch(chosen, config))
    return agent


def batch(chosen: Precision, config: AgentConfig = CONFIG) -> Batch:
    size, dtype = config.batch, chosen.dtype
    return Batch(
        obs=torch.ones(size, OBS, dtype=dtype),
        action=torch.zeros(size, ACTION, dtype=dtype),
        reward=torch.ones(size),
        discount=torch.ones(size),
        next_obs=torch.ones(size, OBS, dtype=dtype),
        weight=torch.ones(size),
    )


def planned(chosen: Precision, compute: torch.dtype = torch.float32, config: AgentConfig = CONFIG) -> list[Buffer]:
    return learner_buffers(OBS, ACTION, config, chosen, compute, CPU)


def pieces(agent: Agent) -> dict[str, int]:
    """Return the bytes of each piece of memory by the first path to it; the lag's code is read with theta."""
    return held_bytes({"theta": agent.critic_optim.theta, "target": agent.target, "agent": agent})


def role(path: str) -> tuple[str, str]:
    owner = "actor" if "actor_optim" in path else "critic"
    return owner, next((name for end, name in ROLES.items() if f".{path}".endswith(f".{end}")), "")


@pytest.mark.parametrize("name", ["fp32", "fp16", "others"])
def test_plan_lists_what_a_learner_holds_to_the_byte(name: str) -> None:
    for chosen in COMBINATIONS[name]:
        check(chosen)


def check(chosen: Precision) -> None:
    memory = pieces(learner(chosen)).items()
    listed = [one for one in planned(chosen) if one.kind != "for a moment" and one.role != "scalars"]
    assert sum(one.bytes for one in listed) == sum(size for _, size in memory if size > SMALL)
    assert sum(size for _, size in memory if size <= SMALL) < SCALARS

    state: Counter[tuple[str, str]] = Counter()
    for path, size in memory:
        owner, name = role(path)
        if name and size > SMALL:
            state[owner, name] += size
    assert state == Counter({key: value for key, value in _sums(listed).items() if value})


def _sums(listed: list[Buffer]) -> Counter[tuple[str, str]]:
    sums: Counter[tuple[str, str]] = Counter()
    for one in listed:
        assert one.bytes > SMALL, one
        if one.kind == "state":
            sums[one.owner, one.role] += one.bytes
    return sums


def test_no_tensor_of_a_learner_is_out_of_the_test_s_reach() -> None:
    before = unreached_bytes(())
    agent = learner(precision("fp16", rounding="stochastic", moments="8bit", gradients="in-place"))
    assert unreached_bytes(agent) == before


@pytest.mark.parametrize("name", ["fp32", "fp16"])
def test_critics_that_autograd_differentiates_keep_a_copy_of_their_parameters(name: str) -> None:
    config = msgspec.structs.replace(CONFIG, critic_norm=True)
    memory = pieces(learner(precision(name), config=config)).values()
    listed = [one for one in planned(precision(name), config=config) if one.kind != "for a moment"]
    # Biases of the copy are as small as scalars here.
    assert 0 <= sum(memory) - sum(one.bytes for one in listed if one.role != "scalars") < SCALARS
    (copy,) = (one for one in listed if one.role == "copy for autograd")
    assert copy.dtype == "float32"
    assert copy.elements == 2 * ((OBS + ACTION) * 160 + 160 + 160 * 40 + 40 + 40 + 1)


def test_native_products_need_no_rounding_buffer_and_halve_the_passes() -> None:
    chosen = precision("fp16")
    native = [one for one in planned(chosen, torch.float16) if one.kind == "passes"]
    widened = {one.role: one for one in planned(chosen) if one.kind == "passes"}
    assert {*widened} - {one.role for one in native} == {"rounding"}
    for one in native:
        assert one.bytes * (1 if one.dtype == "float32" else 2) == widened[one.role].bytes
    memory = pieces(learner(chosen, torch.float16)).items()
    listed = [one for one in planned(chosen, torch.float16) if one.kind != "for a moment" and one.role != "scalars"]
    assert sum(one.bytes for one in listed) == sum(size for _, size in memory if size > SMALL)


def test_chunk_of_the_device_bounds_scratch() -> None:
    wide = AgentConfig(hidden=(512, 512), batch=16)
    on_cpu = planned(precision("fp16"), config=wide)
    on_cuda = learner_buffers(OBS, ACTION, wide, precision("fp16"), torch.float16, torch.device("cuda"))
    steps = [next(one.bytes for one in found if one.role == "step") for found in (on_cpu, on_cuda)]
    assert steps[0] == 3 * 4 * 65_536
    assert steps[1] == 3 * next(one.bytes for one in on_cuda if one.role == "theta") * 2


@pytest.mark.parametrize("normalised", [False, True], ids=["plain", "normalised"])
@pytest.mark.parametrize("name", ["fp32", "fp16", "fp16-minus-softplus"])
@pytest.mark.parametrize("shape", [(64, 48), (1024, 600)], ids=str)
def test_an_update_takes_no_more_for_a_moment_than_planned(name: str, shape: tuple[int, ...], normalised: bool) -> None:
    config = AgentConfig(hidden=shape, batch=64, critic_norm=normalised)
    agent = learner(precision(name), config=config)
    given = batch(precision(name), config)
    agent.update(given)
    with profiled() as peak:
        agent.update(given)
    (bound,) = (one.bytes for one in planned(precision(name), config=config) if one.role == "temporaries")
    assert 0 < peak[0] <= bound


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("sizes", [(64, 48), (600, 700), (30, 900)], ids=str)
def test_first_weights_take_no_more_for_a_moment_than_planned(sizes: tuple[int, ...], threads: int) -> None:
    config = AgentConfig(hidden=sizes, batch=16)
    found = planned(precision("fp16"), config=config)
    critic, generator = critic_shape(OBS, ACTION, sizes), torch.Generator()
    flat = torch.zeros(critic.size, dtype=torch.float16)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        with profiled() as peak:
            critic.initialise(flat, generator)
    finally:
        torch.set_num_threads(before)
    (bound,) = (one.bytes for one in found if one.role == "first weights")
    assert bound / 3 < peak[0] <= bound


@contextlib.contextmanager
def profiled() -> Iterator[list[int]]:
    """Yield a list that holds, afterwards, the bytes that were taken at most at one time inside."""
    peak: list[int] = []
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        yield peak
    events = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    peak.append(max(itertools.accumulate(event.nbytes() for event in events)))
