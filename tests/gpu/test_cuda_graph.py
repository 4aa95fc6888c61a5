"""A graph of updates does to the bit what its updates do one by one, and takes no memory when it is replayed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from edge_sac.agent import Agent
from edge_sac.config import AgentConfig, Config
from edge_sac.cuda_graph import CudaRecorder, recorder_for
from edge_sac.device_memory import DeviceColumn, PinnedColumn
from edge_sac.device_replay import DeviceReplay
from edge_sac.engine import WARM, Engine
from edge_sac.half_matmul import probe
from edge_sac.precision import precision
from edge_sac.replay import Replay
from edge_sac.sources import DeviceSource
from edge_sac.storage import STORAGES
from edge_sac.working_copy import pinned_problem, place, source_for

pytestmark = pytest.mark.gpu
OBS, ACTION = 17, 6


def agent(cuda: torch.device, name: str, **options: str) -> Agent:
    chosen = precision(name, **options)
    config = AgentConfig(hidden=(64, 64), batch=64)
    return Agent(OBS, ACTION, config, chosen, probe(cuda, chosen.dtype), cuda, seed=0)


def filled_replay(storage: str = "fp16", capacity: int = 1_500) -> Replay:
    replay, rng = Replay(capacity, OBS, ACTION, storage), np.random.default_rng(0)
    obs = rng.normal(size=(2_001, OBS))
    for step in range(2_000):
        replay.add(obs[step], rng.uniform(-1, 1, ACTION), rng.normal(), False, step % 100 == 99, obs[step + 1])
    return replay


def engine(learner: Agent, replay: Replay, recorder: CudaRecorder | None) -> Engine:
    dtype, batch = learner.precision.dtype, learner.config.batch
    copied = DeviceReplay(replay.ring, batch, gamma=0.99, n_step=1, dtype=dtype, generator=learner.generator)
    return Engine(learner, DeviceSource(copied), recorder)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param("fp16", {}, id="fp16"),
        pytest.param("fp16", {"target": "kahan"}, id="Kahan target"),
        pytest.param("fp16", {"rounding": "stochastic", "moments": "8bit", "gradients": "in-place"}, id="leanest"),
        pytest.param("fp16-minus-softplus", {}, id="autograd"),
        pytest.param("fp32", {}, id="fp32"),
    ],
)
def test_graphed_and_eager_agree_bit_for_bit_over_1000_updates(
    cuda: torch.device, name: str, options: dict[str, str]
) -> None:
    replay = filled_replay()
    eager, graphed = agent(cuda, name, **options), agent(cuda, name, **options)
    plain = engine(eager, replay, None)
    recording = engine(graphed, replay, recorder_for(cuda, graphed.generator))
    for due in [1, 2, 1, 4] * 125:
        plain.run(due)
        recording.run(due)
    assert recording.news() == ""
    assert eager.updates == graphed.updates == 1_000
    for key, value in eager.state().items():
        assert torch.equal(value, graphed.state()[key]), key
    assert eager.read_metrics() == graphed.read_metrics()


def test_replay_of_a_graph_does_not_move_the_allocators_counters(cuda: torch.device) -> None:
    learner = agent(cuda, "fp16")
    ours = engine(learner, filled_replay(), recorder_for(cuda, learner.generator))
    for _ in range(WARM + 2):
        ours.run(4)
    torch.cuda.synchronize()
    before = torch.cuda.memory_stats(cuda)
    for _ in range(100):
        ours.run(4)
    torch.cuda.synchronize()
    after = torch.cuda.memory_stats(cuda)
    assert learner.updates == 4 * (WARM + 102)
    assert {key: value for key, value in after.items() if value != before[key]} == {}


def test_restored_agent_goes_on_with_its_graphs(cuda: torch.device) -> None:
    replay, learner = filled_replay(), agent(cuda, "fp16")
    ours = engine(learner, replay, recorder_for(cuda, learner.generator))
    for _ in range(10):
        ours.run(1)
    saved = {key: value.clone() for key, value in learner.state().items()}
    ours.run(6)
    first = {key: value.clone() for key, value in learner.state().items()}
    learner.restore(saved)
    ours.run(6)
    for key, value in learner.state().items():
        assert torch.equal(value, first[key]), key


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_draw_on_the_device_is_what_the_host_holds_of_the_same_slots(
    cuda: torch.device, storage: str, dtype: torch.dtype
) -> None:
    replay = filled_replay(storage)
    generator = torch.Generator(device=cuda).manual_seed(1)
    copied = DeviceReplay(replay.ring, 512, gamma=0.9, n_step=3, dtype=dtype, generator=generator)
    copied.follow()
    slots = copied._draw_slots()
    copied._draw_slots = lambda: slots  # type: ignore[method-assign]
    found = copied.draw()

    class Chosen:
        def integers(self, *_: Any, size: int) -> Any:
            assert size == len(slots), "a slot that begins no transition was drawn again"
            return slots.cpu().numpy()

    kind: Any = {torch.float16: np.float16, torch.float32: np.float32}[dtype]
    expected = replay.sampler(512, gamma=0.9, n_step=3, dtype=kind).draw(Chosen())  # type: ignore[arg-type]
    for name, value in vars(expected).items():
        assert getattr(found, name).cpu().numpy().tobytes() == value.tobytes(), name


def test_pinned_memory_is_read_where_it_lies_or_said_to_be_unreadable(cuda: torch.device) -> None:
    column, reason = place(2**20, cuda)
    assert column in (DeviceColumn, PinnedColumn)
    assert reason
    if problem := pinned_problem(cuda):
        pytest.skip(problem)
    replay = filled_replay()
    draws = []
    for kind in (DeviceColumn, PinnedColumn):
        generator = torch.Generator(device=cuda).manual_seed(1)
        copied = DeviceReplay(
            replay.ring, 64, gamma=0.9, n_step=1, dtype=torch.float16, generator=generator, column=kind
        )
        copied.follow()
        draws.append(copied.draw())
    for name, value in vars(draws[0]).items():
        assert torch.equal(value, getattr(draws[1], name)), name


@pytest.mark.parametrize("sampling", ["uniform", "prioritized"])
def test_whatever_draws_the_batches_the_updates_are_graphs(cuda: torch.device, sampling: Any) -> None:
    learner, replay = agent(cuda, "fp16"), filled_replay()
    config = Config(agent=learner.config, sampling=sampling)
    sampler = replay.sampler(64, gamma=0.99, prioritized=sampling == "prioritized", dtype="float16")
    source, line = source_for(learner, replay, sampler, np.random.default_rng(0), config)
    assert line.startswith("batches are drawn on ")
    ours = Engine(learner, source, recorder_for(cuda, learner.generator))
    for _ in range(20):
        ours.run(2)
    assert ours.news() == ""
    assert learner.updates == 40
    assert len(ours._recordings) > 0
    assert np.isfinite(learner.read_metrics().row["critic_loss"])
