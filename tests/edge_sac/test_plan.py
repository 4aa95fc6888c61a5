"""What a plan says of replay, sampler, policy and checkpoint is what they hold, byte by byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from edge_sac.agent import Agent
from edge_sac.checkpoint import KEPT, TENSORS_FILE, save_checkpoint
from edge_sac.config import AgentConfig, Config
from edge_sac.device_replay import DeviceReplay
from edge_sac.half_matmul import MatmulPath
from edge_sac.learner_buffers import SCALARS
from edge_sac.memory_available import resident_memory
from edge_sac.plan import SERIALISED, Plan, Sizes, plan_of
from edge_sac.policy import ActingPolicy
from edge_sac.precision import precision_of
from edge_sac.replay import Replay
from edge_sac.replay_ring import Ring
from edge_sac.sources import static_batch
from edge_sac.storage import STORAGES
from edge_sac.trainer import RECORDED

OBS, ACTION = 17, 6
SIZES = Sizes(OBS, ACTION, torch.float32)
CONFIG = Config(device="cpu", replay_capacity=1_000, agent=AgentConfig(hidden=(64, 48), batch=32))
# Names and shapes of a checkpoint's tensors, and the JSON around them.
HEADER = 8_192


def changed(**changes: Any) -> Config:
    return msgspec.structs.replace(CONFIG, **changes)


def bytes_of(plan: Plan, owner: str, role: str) -> int:
    (found,) = (one.bytes for one in plan.buffers if (one.owner, one.role) == (owner, role))
    return found


def arrays(thing: Any, seen: set[int]) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the arrays that own what `thing` leads to, short of the ring itself."""
    if isinstance(thing, np.ndarray):
        yield arrays_owner(thing)
        return
    if id(thing) in seen or isinstance(thing, Ring):
        return
    seen.add(id(thing))
    inside: Any = ()
    if isinstance(thing, list | tuple):
        inside = thing
    elif type(thing).__module__.startswith("edge_sac"):
        inside = vars(thing).values()
    for value in inside:
        yield from arrays(value, seen)


def arrays_owner(view: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    while isinstance(view.base, np.ndarray):
        view = view.base
    return view


@pytest.mark.parametrize("sampling", ["uniform", "prioritized"])
@pytest.mark.parametrize("precision", ["fp16", "fp32"])
@pytest.mark.parametrize("storage", STORAGES)
def test_replay_and_sampler_hold_what_is_planned(tmp_path: Path, storage: str, precision: str, sampling: str) -> None:
    config = changed(storage=storage, precision=precision, sampling=sampling)
    chosen = precision_of(config)
    path = tmp_path / "transitions.map"
    replay = Replay(config.replay_capacity, OBS, ACTION, storage, path)
    ranked = sampling == "prioritized"
    sampler = replay.sampler(config.agent.batch, gamma=0.99, prioritized=ranked, dtype=chosen.replay_dtype)
    owners = {id(array): array.nbytes for array in arrays(sampler, set())}
    plan = plan_of(config, SIZES)
    sampling_roles = ("batch, rows it is from", "priorities", "ranks of the batch")
    assert sum(owners.values()) == sum(one.bytes for one in plan.buffers if one.role in sampling_roles)
    assert path.stat().st_size == bytes_of(plan, "replay", "file's pages") == plan.files[0].bytes
    assert plan.row_bytes == replay.bytes_per_transition
    replay.close()


def test_acting_policy_holds_what_is_planned() -> None:
    policy = ActingPolicy(OBS, ACTION, CONFIG.agent.hidden)
    held = sum(buffer.nbytes for buffer in policy._buffers.values())
    plan = plan_of(CONFIG, SIZES)
    assert held == bytes_of(plan, "policy", "that acts") == bytes_of(plan, "policy", "best so far")


@pytest.mark.parametrize("changes", [{}, {"precision": "fp32"}, {"moments": "8bit", "rounding": "stochastic"}], ids=str)
def test_checkpoint_takes_what_is_planned(tmp_path: Path, changes: dict[str, str]) -> None:
    config = changed(**changes)
    chosen = precision_of(config)
    path = MatmulPath(chosen.dtype, torch.float32, "test")
    agent = Agent(OBS, ACTION, config.agent, chosen, path, torch.device("cpu"), seed=0)
    weights = ActingPolicy(OBS, ACTION, config.agent.hidden)._buffers
    tensors = agent.state() | {f"best.{name}": torch.from_numpy(value) for name, value in weights.items()}
    tensors["recorded"] = torch.zeros(RECORDED, OBS)
    folder = save_checkpoint(tmp_path, 1, tensors, {})
    size = (folder / TENSORS_FILE).stat().st_size
    plan = plan_of(config, SIZES)
    saved = bytes_of(plan, "checkpoint", "being made") // SERIALISED
    # Beside scalars, the state of a generator of 5 kB.
    assert saved < size < saved + HEADER + SCALARS + 5_100
    assert plan.files[1].bytes == (KEPT + 1) * saved


def test_a_checkpoint_being_made_is_there_twice(tmp_path: Path) -> None:
    size = 64 * 2**20
    tensors = {"zeros": torch.zeros(size // 4)}
    save_checkpoint(tmp_path, 0, {"zeros": torch.zeros(1)}, {})
    try:
        # Lets the peak be counted from here on, proc(5).
        Path("/proc/self/clear_refs").write_text("5")
    except OSError as error:
        pytest.skip(f"the peak cannot be reset here: {error}")
    before = resident_memory()
    save_checkpoint(tmp_path, 1, tensors, {})
    # More by what the heap grows, less by what was free in it.
    assert resident_memory("VmHWM") - before == pytest.approx(SERIALISED * size, rel=0.1)


def test_priorities_are_in_the_checkpoint() -> None:
    uniform, ranked = (plan_of(changed(sampling=kind), SIZES) for kind in ("uniform", "prioritized"))
    more = bytes_of(ranked, "checkpoint", "being made") - bytes_of(uniform, "checkpoint", "being made")
    assert more == SERIALISED * 4 * (CONFIG.replay_capacity + 1)


def test_peak_is_the_sum_of_all_since_freed_memory_is_kept() -> None:
    plan = plan_of(CONFIG, SIZES)
    assert plan.peak() == sum(one.bytes for one in plan.buffers)
    assert len([one for one in plan.buffers if one.kind == "for a moment"]) == 4


def test_a_gpu_of_its_own_memory_holds_learner_and_working_copy() -> None:
    plan = plan_of(changed(device="cuda"), SIZES)
    assert {one.owner for one in plan.buffers if one.on_gpu} == {"critic", "actor", "update", "replay"}
    # Mark and check of a row, 6 bytes, are one of flags there.
    assert bytes_of(plan, "replay", "working copy") == 1_001 * (plan.row_bytes - 5)
    assert plan.peak(on_gpu=True) + plan.peak(on_gpu=False) == plan.peak()
    pinned = plan_of(changed(device="cuda"), SIZES, pinned=True)
    moved = plan.peak(on_gpu=True) - pinned.peak(on_gpu=True)
    assert moved == pinned.peak(on_gpu=False) - plan.peak(on_gpu=False) == 1_001 * (plan.row_bytes - 5)


@pytest.mark.parametrize("storage", STORAGES)
def test_what_a_gpu_draws_from_holds_what_is_planned(storage: str) -> None:
    config = changed(device="cuda", storage=storage)
    batch = config.agent.batch
    replay = Replay(config.replay_capacity, OBS, ACTION, storage)
    made = DeviceReplay(
        replay.ring, batch, gamma=0.99, n_step=1, dtype=torch.float16, generator=torch.Generator().manual_seed(0)
    )
    plan = plan_of(config, SIZES)
    columns = (made._obs, made._action, made._reward, made._flags)
    assert bytes_of(plan, "replay", "working copy") == sum(column.values.nbytes for column in columns)
    assert bytes_of(plan, "replay", "pinned, on its way") == sum(memory.nbytes for memory, _ in made._staged)
    drawn = static_batch(batch, OBS, ACTION, torch.float32, torch.device("cpu"))
    held = sum(tensor.nbytes for tensor in (*vars(drawn).values(), made._uniform, made._weight))
    assert held == bytes_of(plan, "replay", "batch on the GPU")


def test_with_priorities_there_is_no_copy_on_a_gpu() -> None:
    plan = plan_of(changed(device="cuda", sampling="prioritized"), SIZES)
    assert "working copy" not in {one.role for one in plan.buffers}
