"""The training loop does what was asked of it, saves before it raises, and resumes to the very same numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from edge_sac import trainer as trainer_module
from edge_sac.agent import Agent
from edge_sac.checkpoint import checkpoint_steps, load_checkpoint
from edge_sac.config import AgentConfig, Config
from edge_sac.errors import CheckpointError, NonFinite, ReplayError
from edge_sac.half_matmul import MatmulPath
from edge_sac.interface import Interface
from edge_sac.metrics import read_metrics
from edge_sac.normalizer import Normalizer
from edge_sac.precision import precision
from edge_sac.replay import Replay
from edge_sac.replay_row import FIRST, STEP, TERMINATED, TRUNCATED
from edge_sac.run_state import Progress
from edge_sac.trainer import Trainer

LENGTH = 10
TIMING = ("wall_s", "updates_per_s")


class Line(gymnasium.Env[NDArray[np.float64], NDArray[np.float32]]):
    """A point pushed along a line; the observation holds the step and the seed, so that each can be told apart.

    Ends after `length` steps, `terminated` or truncated. At `bad_step` (of all steps ever) something is not a number.
    """

    def __init__(self, length: int = LENGTH, terminated: bool = False, bad_step: int = -1, bad: str = "obs") -> None:
        self.action_space = gymnasium.spaces.Box(-1.0, 3.0, (1,), np.float32)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float64)
        self.length, self.terminated, self.bad_step, self.bad = length, terminated, bad_step, bad
        self.steps = self.episode_step = 0
        self.seeds: list[int] = []
        self.actions: list[float] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[np.float64], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.seeds.append(-1 if seed is None else seed)
        self.episode_step, self.position = 0, float(self.np_random.uniform())
        return np.array([self.position, 0.0]), {}

    def step(self, action: NDArray[np.float32]) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        self.actions.append(float(action[0]))
        self.position += 0.01 * float(action[0])
        bad = self.steps == self.bad_step
        self.steps += 1
        self.episode_step += 1
        value = {"obs": np.nan, "inf": np.inf, "huge": 1e5}.get(self.bad, self.position) if bad else self.position
        reward = float("nan") if bad and self.bad == "reward" else -abs(self.position)
        ended = self.episode_step >= self.length
        obs = np.array([value, self.episode_step / 100])
        return obs, reward, ended and self.terminated, ended and not self.terminated, {"success": ended}


@dataclasses.dataclass
class Wish:
    """Asks for a stop once `env` has made some steps."""

    env: Line
    after: float = float("inf")
    urgent_after: float = float("inf")

    @property
    def requested(self) -> bool:
        return self.env.steps >= min(self.after, self.urgent_after)

    @property
    def urgent(self) -> bool:
        return self.env.steps >= self.urgent_after


@dataclasses.dataclass
class Case:
    """A trainer with the parts a test looks at."""

    trainer: Trainer
    env: Line
    reports: list[Progress]

    def train(self, after: float = float("inf"), urgent_after: float = float("inf")) -> bool:
        return self.trainer.train(Wish(self.env, after, urgent_after))


@pytest.fixture
def opened() -> Iterator[list[Trainer]]:
    trainers: list[Trainer] = []
    yield trainers
    for trainer in trainers:
        trainer.close()


@pytest.fixture
def make(tmp_path: Path, opened: list[Trainer], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(trainer_module, "LOG_STEPS", 50)
    monkeypatch.setattr("edge_sac.metrics.EventsFile", lambda *_: Silent())

    def make_case(
        env: Line | None = None, run: Path = tmp_path, hidden: tuple[int, ...] = (8,), **settings: Any
    ) -> Case:
        base: dict[str, Any] = {"steps": 100, "random_steps": 20, "eval_every": 10_000, "eval_episodes": 1, "seed": 5}
        config = Config(agent=AgentConfig(hidden=hidden, batch=8), **(base | settings))
        face = Interface(
            ["position", "clock"],
            ["push"],
            Normalizer(np.zeros(2, np.float32), np.array([1.0, 0.5], np.float32)),
            np.array([-1.0], np.float32),
            np.array([3.0], np.float32),
            dt=1 / 50,
        )
        chosen = precision(config.precision)
        path = MatmulPath(chosen.dtype, torch.float32, "through fp32")
        agent = Agent(2, 1, config.agent, chosen, path, torch.device("cpu"), config.seed)
        replay = Replay(1000, 2, 1, config.storage or chosen.storage, run / "map", face.obs_names, face.action_names)
        env, reports = env or Line(), []
        trainer = Trainer(run, config, face, env, Line(), agent, replay, reports.append)
        opened.append(trainer)
        return Case(trainer, env, reports)

    return make_case


class Silent:
    """In place of TensorBoard's files, which are another test's."""

    def write(self, *_: object) -> None: ...

    def close(self) -> None: ...


@pytest.mark.parametrize(("ratio", "updates"), [(0.25, 20), (1.0, 81), (3.5, 283)])
def test_achieved_update_ratio_is_exactly_the_one_asked_for(make: Any, ratio: float, updates: int) -> None:
    # Updates begin with the step that makes the random ones full: 81 of 100 steps.
    case = make(updates_per_step=ratio)
    assert case.train()
    assert case.trainer.agent.updates == updates
    rows = read_metrics(case.trainer.run)
    assert rows["updates"][-1] == updates
    # The second window is of steps 51 to 100; how much of an update was owed at its start is below 1.
    assert rows["utd_ratio"][-1] == pytest.approx(ratio, abs=1 / 50)
    assert case.reports[-1].utd_ratio == rows["utd_ratio"][-1]


def test_first_actions_are_uniform_over_the_whole_range_and_the_stored_ones_are_the_same(make: Any) -> None:
    case = make(random_steps=100)
    case.train()
    assert min(case.env.actions) < -0.8
    assert max(case.env.actions) > 2.8
    assert case.trainer.agent.updates == 1
    batch = case.trainer.replay.sampler(500, gamma=0.99, dtype=np.float16).draw(np.random.default_rng(0))
    given = np.unique(np.float16((np.array(case.env.actions) - 1) / 2))
    # fp16 rounds what was stored by at most half of 2^-11 near 1.
    assert np.abs(np.unique(batch.action) - given[:, None]).min(axis=0).max() <= 2**-11


def test_stored_observations_are_normalised(make: Any) -> None:
    case = make()
    case.train()
    batch = case.trainer.replay.sampler(500, gamma=0.99, dtype=np.float16).draw(np.random.default_rng(0))
    clocks = {float(np.float16(step / 50)) for step in range(LENGTH)}
    assert set(batch.obs[:, 1].astype(float)) == clocks


@pytest.mark.parametrize("terminated", [True, False])
def test_an_end_is_stored_as_what_it_was_with_its_true_last_observation(make: Any, terminated: bool) -> None:
    case = make(Line(terminated=terminated), steps=30)
    case.train()
    rows = case.trainer.replay.read(0, 33)
    end = STEP | (TERMINATED if terminated else TRUNCATED)
    assert rows.kind.tolist() == 3 * [FIRST, *(LENGTH - 1) * [STEP], end]
    np.testing.assert_array_equal(rows.obs[[10, 21, 32], 1], np.float16(LENGTH / 50))


def test_a_run_ends_with_the_episode_in_which_its_last_step_falls(make: Any) -> None:
    case = make(steps=95)
    assert case.train()
    assert case.trainer.at.step == 100


def test_an_episode_that_will_not_end_is_cut_some_time_after_the_last_step(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer_module, "OVERTIME_STEPS", 7)
    case = make(Line(length=10**9), steps=95)
    assert case.train()
    assert case.trainer.at.step == 102
    assert not case.trainer.replay.open_episode
    assert case.trainer.replay.read(0, 103).kind.tolist() == [FIRST, *102 * [STEP]]


def test_a_requested_stop_waits_for_the_end_of_the_episode_and_an_urgent_one_does_not(
    make: Any, tmp_path: Path
) -> None:
    case = make()
    assert not case.train(after=43)
    assert (case.trainer.at.step, case.trainer.saved) == (50, 50)
    (tmp_path / "other").mkdir()
    urgent = make(run=tmp_path / "other")
    assert not urgent.train(urgent_after=43)
    assert (urgent.trainer.at.step, urgent.trainer.saved) == (43, 43)
    assert not urgent.trainer.replay.open_episode


def test_an_evaluation_is_dropped_by_an_urgent_stop_and_made_by_the_resumed_run(make: Any) -> None:
    case = make(steps=100, eval_every=40)
    wish = Wish(case.env)
    evaluate = case.trainer.eval_env.step

    def step(action: NDArray[np.float32]) -> Any:
        wish.urgent_after = 0
        return evaluate(action)

    case.trainer.eval_env.step = step
    assert not case.trainer.train(wish)
    assert case.trainer.at.step == 40
    assert case.trainer.at.best_step == -1
    case.trainer.close()
    again = make(steps=100, eval_every=40)
    again.trainer.resume()
    again.train()
    assert list(evaluated(again)) == [40, 80]


def evaluated(case: Case) -> NDArray[Any]:
    rows = read_metrics(case.trainer.run)
    steps: NDArray[Any] = rows["step"][rows["kind"] == "eval"]
    return steps


def test_evaluations_come_at_the_first_episode_end_of_each_interval(make: Any) -> None:
    case = make(steps=100, eval_every=25)
    case.train()
    assert list(evaluated(case)) == [30, 50, 80, 100]


def test_evaluations_are_on_episodes_that_training_never_sees_and_always_the_same(make: Any) -> None:
    case = make(steps=100, eval_every=50, eval_episodes=3)
    case.train()
    seeds = case.trainer.eval_env.seeds
    assert len(seeds) == 6
    assert seeds[:3] == seeds[3:]
    assert not set(seeds) & set(case.env.seeds)


def test_the_best_evaluated_policy_is_kept_and_not_the_last(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    merits = iter([(0.1, 5.0), (0.7, 1.0), (0.7, 1.0), (0.7, 0.5)])
    kept = []

    class Judged:
        return_mean, success_rate, success_fraction = 0.0, None, None

        def __init__(self, _episodes: object) -> None:
            self.merit = next(merits)

    monkeypatch.setattr(trainer_module, "summarise", Judged)
    case = make(steps=100, eval_every=25)
    save = case.trainer.save
    monkeypatch.setattr(case.trainer, "save", lambda: (kept.append(case.trainer._weights()["w0"].copy()), save()))
    case.train()
    assert (case.trainer.at.best_step, case.trainer.at.best_merit) == (50, (0.7, 1.0))
    _, tensors, state = load_checkpoint(case.trainer.run)
    assert state["counters"]["best_step"] == 50
    np.testing.assert_array_equal(tensors["best.w0"].numpy(), kept[2])  # saves: start, 30, 50, ...
    assert not np.array_equal(kept[2], kept[-1])


@pytest.mark.parametrize("bad", ["obs", "inf", "reward"])
def test_what_is_no_number_stops_the_run_after_saving_and_is_not_stored(make: Any, bad: str) -> None:
    case = make(Line(bad_step=43, bad=bad))
    what = {"obs": "observation 'position' is nan", "inf": "observation 'position' is inf", "reward": "reward is nan"}
    with pytest.raises(NonFinite, match=rf"step 43: .*{what[bad]}"):
        case.train()
    assert (checkpoint_steps(case.trainer.run)[-1], case.trainer.saved) == (43, 43)
    assert len(case.trainer.replay) == 43
    assert not case.trainer.replay.open_episode
    case.trainer.close()
    again = make()
    assert again.trainer.resume().newer == 0
    assert again.train()
    assert again.env.seeds[0] not in case.env.seeds
    assert again.trainer.at.step == 103


def test_first_observation_that_is_no_number_stops_the_run_too(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make()
    monkeypatch.setattr(case.env, "reset", lambda **_: (np.array([0.0, np.nan]), {}))
    with pytest.raises(NonFinite, match="step 0: observation 'clock' is nan"):
        case.train()
    assert case.trainer.saved == 0


def test_value_that_fp16_cannot_hold_stops_the_run_by_name_after_saving(make: Any) -> None:
    case = make(Line(bad_step=43, bad="huge"))
    with pytest.raises(ReplayError, match=r"'position' is 100000\.0"):
        case.train()
    assert case.trainer.saved == 43
    assert len(case.trainer.replay) == 43


def test_a_learner_whose_steps_are_all_skipped_stops_the_run_after_saving(make: Any) -> None:
    case = make()
    case.trainer.agent.critic_optim.theta[:] = torch.inf
    with pytest.raises(NonFinite, match=r"step 50: the \w+ learner .*lower \w+_lr"):
        case.train()
    assert case.trainer.saved == 50


def test_a_save_that_fails_says_so_with_what_stopped_the_run(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make(Line(bad_step=43))

    def fail(*_: object) -> None:
        if case.trainer.at.step > 0:
            raise CheckpointError("the disk is full")

    monkeypatch.setattr(trainer_module, "save_checkpoint", fail)
    with pytest.raises(CheckpointError, match=r"position.*nothing could be saved: the disk is full"):
        case.train()
    assert case.trainer.saved == 0


def test_any_error_of_the_environment_is_raised_again_after_saving(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make()
    step = case.env.step

    def fail(action: NDArray[np.float32]) -> Any:
        if case.env.steps == 43:
            raise ZeroDivisionError("the environment's own")
        return step(action)

    monkeypatch.setattr(case.env, "step", fail)
    with pytest.raises(ZeroDivisionError, match="own"):
        case.train()
    assert case.trainer.saved == 43


def test_a_long_episode_is_saved_and_logged_while_it_lasts(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case = make(Line(length=10**9), checkpoint_seconds=0.02)
    seen = []
    save = case.trainer.save
    monkeypatch.setattr(case.trainer, "save", lambda: (seen.append(case.trainer.replay.open_episode), save()))
    case.train(urgent_after=100)
    assert any(seen)
    assert list(read_metrics(case.trainer.run)["step"]) == [50, 100]


def everything(case: Case) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """Return the last checkpoint, but for times, and the replay's rows."""
    _, tensors, state = load_checkpoint(case.trainer.run)
    counters = {name: value for name, value in state["counters"].items() if name not in ("wall_s", "cpu_s")}
    rows = case.trainer.replay.ring.rows.tobytes()
    return tensors, {**state, "counters": counters}, rows


def records(case: Case) -> list[tuple[Any, ...]]:
    columns = read_metrics(case.trainer.run)
    names = [name for name in columns if name not in TIMING]
    return [tuple(map(str, row)) for row in zip(*(columns[name] for name in names), strict=True)]


@pytest.mark.parametrize(
    ("changed", "stops"),
    [
        ({}, (43,)),
        ({}, (8, 61)),
        ({}, (20, 20)),
        ({"precision": "fp32"}, (8, 61)),
        ({"storage": "u8"}, (8, 61)),
        ({"sampling": "prioritized"}, (8, 61)),
    ],
)
def test_a_resumed_run_equals_an_uninterrupted_one_bit_for_bit(
    make: Any, tmp_path: Path, stops: tuple[int, ...], changed: dict[str, str]
) -> None:
    settings = {"steps": 130, "eval_every": 40, "updates_per_step": 0.75} | changed
    folders = [tmp_path / "whole", tmp_path / "parts"]
    for folder in folders:
        folder.mkdir()
    whole = make(run=folders[0], **settings)
    assert whole.train()
    for stop in stops:
        part = make(run=folders[1], **settings)
        part.trainer.resume()
        part.train(after=stop - part.trainer.at.step)
        part.trainer.close()
    part = make(run=folders[1], **settings)
    assert part.trainer.resume().newer == 0
    assert part.train()
    (tensors, state, rows), (other_tensors, other_state, other_rows) = everything(whole), everything(part)
    assert tensors.keys() == other_tensors.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, other_tensors[name]), name
    assert state == other_state
    assert rows == other_rows
    assert records(whole) == records(part)


def test_transitions_newer_than_the_checkpoint_are_counted_and_kept(make: Any) -> None:
    case = make()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(case.trainer, "_save_after", lambda _error: None)  # as a kill does: nothing is saved
        patch.setattr(case.env, "bad_step", 63)
        with pytest.raises(NonFinite):
            case.train()
    case.trainer.close()
    again = make()
    assert again.trainer.resume().newer == 63
    assert (again.trainer.at.step, len(again.trainer.replay)) == (0, 63)
    assert again.train()
    assert len(again.trainer.replay) == 163
    # The row at step 50 was written by both processes; only the one that is still true stays.
    assert list(read_metrics(again.trainer.run)["step"]) == [50, 100]


def test_a_run_killed_before_its_first_step_begins(make: Any) -> None:
    case = make()
    case.trainer.close()
    again = make()
    assert again.trainer.resume().newer == 0
    assert again.train()


def test_a_deleted_replay_is_counted_as_missing_and_training_goes_on(make: Any, tmp_path: Path) -> None:
    case = make()
    case.train(after=50)
    case.trainer.close()
    (tmp_path / "map").unlink()
    again = make()
    assert again.trainer.resume().missing == 50
    assert again.train()
    assert len(again.trainer.replay) == 50


def test_a_replay_older_than_the_checkpoint_is_refused(make: Any, tmp_path: Path) -> None:
    case = make()
    case.train(after=30)
    case.trainer.close()
    older = (tmp_path / "map").read_bytes()
    case = make()
    case.trainer.resume()
    case.train(after=30)
    case.trainer.close()
    (tmp_path / "map").write_bytes(older)
    with pytest.raises(CheckpointError, match=r"30 transitions.*60.*delete the file"):
        make().trainer.resume()


def test_a_checkpoint_of_another_network_is_refused_and_nothing_changes(make: Any, tmp_path: Path) -> None:
    case = make()
    case.train(after=30)
    case.trainer.close()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    other = make(hidden=(9,))
    with pytest.raises(CheckpointError, match=r"step 30.*another configuration"):
        other.trainer.resume()
    other.trainer.close()
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_an_episode_is_never_left_open(make: Any) -> None:
    case = make(Line(bad_step=43))
    with pytest.raises(NonFinite):
        case.train()
    assert not case.trainer.replay.open_episode


def test_each_transition_carries_the_time_of_a_control_step(make: Any) -> None:
    case = make(steps=10)
    case.train()
    # 1/50 is kept to 9 significant bits.
    np.testing.assert_allclose(case.trainer.replay.read(0, 11).dt, [0, *10 * [1 / 50]], rtol=2**-9)
