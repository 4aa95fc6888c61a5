"""Updates that are recorded and repeated are the updates made one by one, whatever is asked for in between."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from edge_sac import engine
from edge_sac.agent import Agent, Batch
from edge_sac.config import AgentConfig, Config
from edge_sac.cuda_graph import recorder_for
from edge_sac.device_replay import DeviceReplay
from edge_sac.engine import WARM, Engine
from edge_sac.half_matmul import MatmulPath, probe
from edge_sac.precision import precision
from edge_sac.replay import Replay
from edge_sac.sources import DeviceSource, HostSource, static_batch
from edge_sac.working_copy import source_for

CPU = torch.device("cpu")
OBS, ACTION, BATCH = 5, 2, 32


class Tape(TorchDispatchMode):
    """What a CUDA graph is, on any device: operations with the memory they work on, noted and not carried out.

    Numbers that the host passes are noted as they were; a tensor that is made is made once, and written again each
    time. What was carried out in order to be noted is undone.
    """

    def __init__(self) -> None:
        super().__init__()
        self._played: list[tuple[Any, Any, Any, list[Any]]] = []
        self._before: dict[int, tuple[Any, Any]] = {}
        self._generators: list[tuple[torch.Generator, torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for value, argument in zip(args, func._schema.arguments, strict=False):
            self._note_written(value, argument)
        for argument in func._schema.arguments:
            self._note_written(kwargs.get(argument.name), argument)
        generator = kwargs.get("generator")
        if generator is not None:
            self._generators.append((generator, generator.get_state()))
        made = func(*args, **kwargs)
        aliased = [result.alias_info for result in func._schema.returns]
        if not (aliased and all(alias is not None and not alias.is_write for alias in aliased)):
            fresh = [] if any(aliased) else [out for out in tree_flatten(made)[0] if isinstance(out, torch.Tensor)]
            self._played.append((func, args, kwargs, fresh))
        return made

    def _note_written(self, value: Any, argument: Any) -> None:
        if argument.alias_info is None or not argument.alias_info.is_write:
            return
        for tensor in tree_flatten(value)[0]:
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self._before.setdefault(storage.data_ptr(), (storage, storage.clone()))

    def undo(self) -> None:
        for storage, before in self._before.values():
            storage.copy_(before)
        for generator, state in reversed(self._generators):
            generator.set_state(state)

    def play(self) -> None:
        with torch.no_grad():
            for func, args, kwargs, fresh in self._played:
                made = tree_flatten(func(*args, **kwargs))[0]
                for memory, value in zip(fresh, made, strict=False):
                    memory.copy_(value)


class TapeRecorder:
    """Records on tapes, and counts."""

    def __init__(self) -> None:
        self.warmed = self.recorded = self.played = 0

    def warm(self, call: Callable[[], None]) -> None:
        self.warmed += 1
        call()

    def record(self, call: Callable[[], None]) -> Callable[[], None]:
        self.recorded += 1
        tape = Tape()
        with tape:
            call()
        tape.undo()

        def play() -> None:
            self.played += 1
            tape.play()

        return play


def agent(name: str = "fp16", device: torch.device = CPU, **settings: Any) -> Agent:
    options = {key: settings.pop(key) for key in ("target", "rounding", "moments", "gradients") if key in settings}
    chosen = precision(name, **options)
    path = MatmulPath(chosen.dtype, torch.float32, "test") if device.type == "cpu" else probe(device, chosen.dtype)
    config = AgentConfig(**{"hidden": (16, 16), "batch": BATCH} | settings)
    return Agent(OBS, ACTION, config, chosen, path, device, seed=3)


def filled_replay(count: int = 200) -> Replay:
    replay, rng = Replay(500, OBS, ACTION), np.random.default_rng(0)
    obs = rng.normal(size=(count + 1, OBS))
    for step in range(count):
        ends = step % 20 == 19
        replay.add(obs[step], rng.uniform(-1, 1, ACTION), rng.normal(), ends, False, obs[step + 1])
    return replay


def device_source(learner: Agent, replay: Replay) -> DeviceSource:
    dtype, batch = learner.precision.dtype, learner.config.batch
    return DeviceSource(
        DeviceReplay(replay.ring, batch, gamma=0.99, n_step=2, dtype=dtype, generator=learner.generator)
    )


def check_equal(one: Agent, other: Agent) -> None:
    """See that two agents are in the same state, and would show the same."""
    for name, value in one.state().items():
        assert torch.equal(value, other.state()[name]), name
    assert one.read_metrics() == other.read_metrics()


CASES = [
    pytest.param("fp16", {}, id="fp16"),
    pytest.param("fp16", {"target": "kahan"}, id="Kahan target"),
    pytest.param("fp16", {"rounding": "stochastic", "moments": "8bit", "gradients": "in-place"}, id="leanest"),
    pytest.param("fp16-minus-softplus", {}, id="autograd"),
    pytest.param("fp32", {}, id="fp32"),
]


@pytest.mark.parametrize(("name", "settings"), CASES)
def test_recorded_updates_equal_those_made_one_by_one(name: str, settings: dict[str, Any]) -> None:
    """All that changes between two updates is memory, the count and the generator, or a tape would not show it."""
    replay = filled_replay()
    eager, taped = agent(name, **settings), agent(name, **settings)
    plain = Engine(eager, device_source(eager, replay))
    recorder = TapeRecorder()
    recording = Engine(taped, device_source(taped, replay), recorder)
    for _ in range(3):
        for due in (1, 1, 4, 1, 3, 1):
            plain.run(due)
            recording.run(due)
    assert taped.updates == eager.updates == 33
    check_equal(eager, taped)
    assert recorder.played > recorder.recorded > 0


def test_rows_that_come_in_between_are_drawn_by_recordings() -> None:
    replay = filled_replay(60)
    eager, taped = agent(), agent()
    plain, recording = (
        Engine(eager, device_source(eager, replay)),
        Engine(taped, device_source(taped, replay), TapeRecorder()),
    )
    rng = np.random.default_rng(7)
    for _ in range(12):
        replay.add(rng.normal(size=OBS), np.zeros(ACTION), 100 * rng.normal(), True, False, rng.normal(size=OBS))
        plain.run(2)
        recording.run(2)
    check_equal(eager, taped)


def patterns(due: list[int], **settings: Any) -> tuple[list[tuple[bool, ...]], Agent]:
    """Return the recordings made when updates are due in these numbers."""
    learner = agent(**settings)
    ours = Engine(learner, device_source(learner, filled_replay()), TapeRecorder())
    for count in due:
        ours.run(count)
    assert learner.updates == sum(due)
    return list(ours._recordings), learner


@pytest.mark.parametrize(
    ("due", "period", "expected"),
    [
        pytest.param([WARM] + [1] * 6, 2, [(True,), (False,)], id="one a step: with and without the target"),
        pytest.param([4] * 4, 2, [(False, True) * 2], id="a whole number of cycles a step: one"),
        pytest.param([3] * 5, 2, [(True, False, True), (False, True, False)], id="a cycle and a half"),
        pytest.param([4] * 4, 1, [(True,) * 4], id="the target follows each"),
        pytest.param([3] + [1] * 9, 6, [(False,), (True,)], id="a long period needs no recording of its length"),
        pytest.param([3] + [1] * 5, 10**12, [(False,)], id="a target that never moves"),
        pytest.param([4] + [40] * 2, 2, [(False, True) * 8, (False, True) * 4], id="many are cut"),
    ],
)
def test_there_is_one_recording_for_each_pattern(due: list[int], period: int, expected: list[Any]) -> None:
    assert patterns(due, target_period=period)[0] == expected


def test_nothing_is_recorded_before_it_is_warm_and_what_warms_counts() -> None:
    learner, recorder = agent(), TapeRecorder()
    ours = Engine(learner, device_source(learner, filled_replay()), recorder)
    for _ in range(WARM):
        ours.run(1)
    assert (recorder.warmed, recorder.recorded, learner.updates) == (WARM, 0, WARM)
    ours.run(1)
    assert (recorder.recorded, recorder.played, learner.updates) == (1, 1, WARM + 1)


def test_restored_agent_goes_on_with_recordings_made_before_as_one_by_one() -> None:
    replay = filled_replay()
    eager, taped = agent(), agent()
    plain, recorder = Engine(eager, device_source(eager, replay)), TapeRecorder()
    recording = Engine(taped, device_source(taped, replay), recorder)
    for ours in (plain, recording):
        ours.run(7)
    saved = {name: value.clone() for name, value in eager.state().items()}
    for _ in range(4):
        plain.run(1)
        recording.run(1)
    assert recorder.recorded == 2
    for learner, ours in ((eager, plain), (taped, recording)):
        learner.restore(saved)
        for _ in range(3):
            ours.run(1)
    assert recorder.recorded == 2
    check_equal(eager, taped)


def test_update_that_cannot_be_recorded_is_made_and_told_once() -> None:
    class Refusing(TapeRecorder):
        def record(self, call: Callable[[], None]) -> Callable[[], None]:
            call()
            raise RuntimeError("operation not permitted when stream is capturing\nmore")

    eager, taped = agent(), agent()
    # A batch that is always the same, since a real recorder draws no numbers.
    batch = static_batch(BATCH, OBS, ACTION, torch.float16, CPU)
    given = HostSource(lambda: pytest.fail("not drawn"), batch)
    given.before = lambda: None  # type: ignore[method-assign]
    ours = Engine(taped, given, Refusing())
    for _ in range(WARM):
        ours.run(1)
    count = taped.updates
    ours.run(1)
    assert taped.updates == count + 1
    assert "one by one: they could not be recorded as a graph (operation not permitted" in ours.news()
    assert ours.news() == ""
    ours.run(2)
    assert taped.updates == count + 3
    assert eager.updates == 0


def test_memory_that_runs_out_while_recording_is_no_reason_to_go_on() -> None:
    class Full(TapeRecorder):
        def record(self, call: Callable[[], None]) -> Callable[[], None]:  # noqa: ARG002
            raise RuntimeError("CUDA error: out of memory")

    learner = agent()
    ours = Engine(learner, device_source(learner, filled_replay()), Full())
    ours.run(WARM)
    before = learner.updates
    with pytest.raises(RuntimeError, match="out of memory"):
        ours.run(1)
    assert learner.updates == before


def test_host_draws_a_batch_for_each_update_and_hears_of_each() -> None:
    replay, config = filled_replay(), Config(agent=AgentConfig(hidden=(16, 16), batch=BATCH), sampling="prioritized")
    ours, other = agent(), agent()
    learners = []
    for learner in (ours, other):
        sampler = replay.sampler(BATCH, gamma=0.99, prioritized=True, dtype="float16")
        learners.append((learner, sampler, np.random.default_rng(1)))
    source, line = source_for(ours, replay, learners[0][1], learners[0][2], config)
    assert line == ""
    Engine(ours, source).run(5)
    _, sampler, rng = learners[1]
    for _ in range(5):
        other.update(Batch.of(sampler.draw(rng), CPU))
        sampler.prioritize(other.td_error.numpy())
    check_equal(ours, other)
    assert np.array_equal(learners[0][1].state()[1], sampler.state()[1])  # type: ignore[arg-type]


def test_batches_of_the_host_go_into_memory_that_stays_where_the_device_has_it() -> None:
    """As on CUDA, where recordings read them there."""
    replay = filled_replay()
    eager, taped = agent(), agent()
    rngs = [np.random.default_rng(2) for _ in range(2)]
    samplers = [replay.sampler(BATCH, gamma=0.99, dtype="float16") for _ in range(2)]
    static = static_batch(BATCH, OBS, ACTION, torch.float16, CPU)
    source = HostSource(lambda: samplers[0].draw(rngs[0]), static)
    recorder = TapeRecorder()
    Engine(taped, source, recorder).run(9)
    Engine(eager, HostSource(lambda: samplers[1].draw(rngs[1]))).run(9)
    assert (recorder.recorded, recorder.played) == (2, 9 - WARM)
    assert source.batch() is static
    check_equal(eager, taped)


def test_recordings_hold_no_agent_beyond_its_engine() -> None:
    learner = agent()
    ours = Engine(learner, device_source(learner, filled_replay()), TapeRecorder())
    ours.run(8)
    gone = weakref.ref(learner)
    del learner, ours
    import gc

    gc.collect()
    assert gone() is None


def test_nothing_records_on_a_cpu() -> None:
    assert recorder_for(CPU, torch.Generator()) is None
    assert engine.LONGEST >= 1
