"""What an update takes from the allocator: nothing that stays, and in the optimiser's steps nothing at all."""

import ctypes
import gc

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from edge_sac.agent import Agent, Batch
from edge_sac.config import AgentConfig
from edge_sac.half_matmul import MatmulPath
from edge_sac.precision import Precision, precision

CPU = torch.device("cpu")
OBS, ACTION, SIZE = 17, 6, 32
OPTIONS = [
    pytest.param("fp32", {}, id="fp32"),
    pytest.param("fp16", {}, id="fp16"),
    pytest.param("fp16", {"target": "kahan"}, id="Kahan target"),
    pytest.param("fp16", {"rounding": "stochastic"}, id="stochastic"),
    pytest.param("fp16", {"moments": "8bit"}, id="8 bits"),
    pytest.param("fp16", {"rounding": "stochastic", "moments": "8bit", "gradients": "in-place"}, id="leanest"),
]


def agent(chosen: Precision) -> Agent:
    settings = AgentConfig(hidden=(32, 32), batch=SIZE)
    return Agent(OBS, ACTION, settings, chosen, MatmulPath(chosen.dtype, torch.float32, "test"), CPU, seed=0)


def batch(dtype: torch.dtype) -> Batch:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    return Batch(
        obs=draw(SIZE, OBS).to(dtype),
        action=torch.tanh(draw(SIZE, ACTION)).to(dtype),
        reward=draw(SIZE),
        discount=torch.full((SIZE,), 0.99),
        next_obs=draw(SIZE, OBS).to(dtype),
        weight=torch.ones(SIZE),
    )


def taken(call) -> list[tuple[str, int]]:
    """Return what each operation of a call took from the allocator: its name and bytes."""
    call()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    return [(event.name, event.self_cpu_memory_usage) for event in seen.events() if event.self_cpu_memory_usage > 0]


SCALAR = 64
"""Bytes: torch converts a scalar of another dtype by way of a new one."""


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_steps_of_optimisers_kahan_and_target_allocate_nothing(name, options):
    ours = agent(precision(name, **options))

    def steps() -> None:
        ours.coefficients.begin()
        for optim in (ours.critic_optim, ours.actor_optim, ours.alpha_optim):
            if optim.grad is not None:
                optim.step()
        ours.coefficients.end()
        ours.target.follow(ours.critic_optim.theta, 0.005)

    assert ours.critic_optim.theta.nbytes > 50 * SCALAR
    assert [found for found in taken(steps) if found[1] > SCALAR] == []


def test_an_allocation_in_a_step_is_seen():
    ours = agent(precision("fp16"))
    assert [found for found in taken(lambda: ours.critic_optim.theta.float()) if found[1] > SCALAR]


class HeapUse(ctypes.Structure):
    """glibc's struct mallinfo2."""

    _fields_ = [
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks")),
        *((name, ctypes.c_size_t) for name in ("uordblks", "fordblks", "keepcost")),
    ]


def held() -> int:
    """Return the bytes in use of the C library's heap."""
    info = ctypes.CDLL(None).mallinfo2
    info.restype = HeapUse
    gc.collect()
    use = info()
    return int(use.uordblks + use.hblkhd)


def left_behind(call, times: int) -> int:
    for _ in range(50):
        call()
    before = held()
    for _ in range(times):
        call()
    return held() - before


ODDS_AND_ENDS = 16_000
"""Bytes: the interpreter's own; a leak of one scalar an update would be 64,000."""
of_glibc = pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="counts glibc's heap")


@of_glibc
@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_heap_holds_as_much_after_1000_updates_as_before(name, options):
    chosen = precision(name, **options)
    ours, data = agent(chosen), batch(chosen.dtype)
    assert abs(left_behind(lambda: ours.update(data), 1_000)) < ODDS_AND_ENDS


@of_glibc
def test_bytes_that_stay_are_seen():
    ours, data, kept = agent(precision("fp32")), batch(torch.float32), []

    def careless() -> None:
        ours.update(data)
        kept.append(data.reward.sum())

    assert left_behind(careless, 300) >= 300 * 64
