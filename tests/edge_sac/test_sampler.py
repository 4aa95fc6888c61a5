"""Batches are what a plain list of episodes says, come in proportion to their priorities, and leave nothing behind."""

from __future__ import annotations

import itertools
import tracemalloc
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_sac.errors import ReplayError
from edge_sac.ranked_draw import ALPHA, BETA, EPSILON
from edge_sac.replay import Replay
from edge_sac.sampler import Sampler
from edge_sac.storage import STORAGES

GAMMA = 0.75  # Its powers are exact in binary.


@dataclass
class Step:
    """A transition as it was added; `row` is the absolute number of the row it ends in."""

    row: int
    obs: float
    reward: float
    next_obs: float
    terminated: bool


class Episodes:
    """Plain lists of what was added, and the same in a replay."""

    def __init__(self, replay: Replay) -> None:
        self.replay, self.lists, self.rows, self.number = replay, list[list[Step]](), 0, 0

    def add(self, length: int, end: str) -> None:
        """Add an episode that ends terminated, truncated, both, cut, or not before the next one begins."""
        self.replay.cut()
        self.lists.append([])
        self.rows += 1
        for i in range(length):
            last = i == length - 1
            terminated, truncated = last and end in ("terminated", "both"), last and end in ("truncated", "both")
            obs, self.number = float(2 * self.number + (i == 0)), self.number + 1
            step = Step(self.rows, obs, float(self.number % 50), float(2 * self.number), terminated)
            self.replay.add([obs, -obs], [obs], step.reward, terminated, truncated, [step.next_obs, -step.next_obs])
            self.lists[-1].append(step)
            self.rows += 1
        if end == "cut":
            self.replay.cut()

    def held(self, n_step: int) -> dict[float, tuple[float, float, float]]:
        """Return by first observation what a batch must say: reward, discount and last observation."""
        oldest = self.rows - self.replay.ring.layout.slots
        found = {}
        for episode in self.lists:
            for i, step in enumerate(episode):
                if step.row - 1 < oldest:
                    continue
                taken = episode[i : i + n_step]
                reward = sum(GAMMA**k * one.reward for k, one in enumerate(taken))
                discount = 0.0 if taken[-1].terminated else GAMMA ** len(taken)
                found[step.obs] = (reward, discount, taken[-1].next_obs)
        return found


def drawn(sampler: Sampler, seed: int = 0) -> dict[float, tuple[float, float, float]]:
    batch = sampler.draw(np.random.default_rng(seed))
    np.testing.assert_array_equal(batch.obs[:, 1], -batch.obs[:, 0])
    np.testing.assert_array_equal(batch.next_obs[:, 1], -batch.next_obs[:, 0])
    np.testing.assert_array_equal(batch.action[:, 0], batch.obs[:, 0])
    parts = (batch.obs[:, 0], batch.reward, batch.discount, batch.next_obs[:, 0])
    return {o: (r, d, n) for o, r, d, n in zip(*(part.tolist() for part in parts), strict=True)}


plans = st.lists(
    st.tuples(st.integers(1, 7), st.sampled_from(["terminated", "truncated", "both", "cut", "open"])),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(capacity=st.integers(1, 12), n_step=st.integers(1, 6), ranked=st.booleans(), plan=plans)
def test_steps_are_those_of_the_episode_and_go_no_further_whatever_the_episodes(
    capacity: int, n_step: int, ranked: bool, plan: list[tuple[int, str]]
) -> None:
    with closing(Replay(capacity, 2, 1, "fp32")) as replay:
        episodes = Episodes(replay)
        # 40 draws per transition miss one of at most 12 with a chance of 12 e^-40.
        sampler = replay.sampler(480, gamma=GAMMA, n_step=n_step, prioritized=ranked)
        for length, end in plan:
            episodes.add(length, end)
            expected = episodes.held(n_step)
            assert len(replay) == len(expected)
            if not expected:
                continue
            found = drawn(sampler)
            assert found.keys() == expected.keys()
            for obs, (reward, discount, next_obs) in expected.items():
                # Each of up to 6 products and sums is rounded to float32.
                assert found[obs] == (pytest.approx(reward, rel=1e-6), discount, next_obs)
            if ranked:
                sampler.prioritize(np.linspace(0.1, 10, 480))


def test_a_truncated_or_cut_episode_bootstraps_from_its_own_last_observation() -> None:
    with closing(Replay(50, 2, 1, "fp32")) as replay:
        episodes = Episodes(replay)
        for end in ("truncated", "cut", "open"):
            episodes.add(2, end)
        found = drawn(replay.sampler(500, gamma=GAMMA, n_step=3))
        # obs: reward, gamma to the steps taken, the episode's own last obs.
        assert found[1.0] == (1 + 0.75 * 2, 0.75**2, 4.0)
        assert found[5.0] == (3 + 0.75 * 4, 0.75**2, 8.0)
        assert found[9.0] == (5 + 0.75 * 6, 0.75**2, 12.0)
        assert found[10.0] == (6, 0.75, 12.0)


def uniform_as_published(replay: Replay, size: int, rng: np.random.Generator) -> Any:
    """Return the slots drawn by the rule: a slot of those held, drawn again while no transition begins there."""
    written, slots = replay.ring.written, replay.ring.layout.slots
    held = min(written, slots)
    kind = {number % slots: replay.read(number, number + 1).kind[0] for number in range(written - held, written)}

    def begins(slot: int) -> bool:
        return slot != (written - 1) % slots and kind.get((slot + 1) % slots, 0) >= 4

    index = rng.integers(0, held, size=size)
    while True:
        missing = [i for i in range(size) if not begins(int(index[i]))]
        if not missing:
            return index
        index[missing] = rng.integers(0, held, size=len(missing))


@pytest.mark.parametrize("episodes", [3, 9])
def test_a_uniform_draw_takes_the_same_numbers_from_the_generator_as_ever(episodes: int) -> None:
    """So that a run's draws depend on its seed alone, not on the version."""
    with closing(Replay(30, 2, 1, "fp32")) as replay:
        added = Episodes(replay)
        for _ in range(episodes):
            added.add(5, "truncated")
        slots = uniform_as_published(replay, 64, np.random.default_rng(3))
        first = replay.ring.parts.obs[slots, 0]
        np.testing.assert_array_equal(replay.sampler(64, gamma=GAMMA).draw(np.random.default_rng(3)).obs[:, 0], first)


def filled(count: int, capacity: int = 100, **choice: Any) -> tuple[Replay, Sampler]:
    replay = Replay(capacity, 1, 1, "fp32")
    for number in range(count):
        replay.add([number], [0], number, False, False, [number + 1])
    return replay, replay.sampler(256, gamma=GAMMA, prioritized=True, **choice)


def prioritize(sampler: Sampler, rng: np.random.Generator, error: Any, rounds: int = 30) -> None:
    """Give each transition the error that `error` says of its number, once it is drawn."""
    for _ in range(rounds):
        numbers = sampler.draw(rng).reward.astype(np.int64)
        sampler.prioritize(error(numbers))


def test_frequencies_follow_the_priorities_and_weights_undo_them() -> None:
    replay, sampler = filled(50)
    rng = np.random.default_rng(0)
    errors = np.geomspace(0.01, 10, 50)
    with closing(replay):
        prioritize(sampler, rng, lambda numbers: errors[numbers] * rng.choice([-1, 1], 256), rounds=200)
        counts, draws = np.zeros(50), 400
        for _ in range(draws):
            batch = sampler.draw(rng)
            counts += np.bincount(batch.reward.astype(np.int64), minlength=50)
        share = (errors + EPSILON) ** ALPHA / ((errors + EPSILON) ** ALPHA).sum()
        expected = share * 256 * draws
        # Five standard deviations of a binomial count; draws from equal shares scatter less.
        assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()
        weight = (50 * share[batch.reward.astype(np.int64)]) ** -BETA
        # Priorities are float32.
        np.testing.assert_allclose(batch.weight, weight / weight.max(), rtol=1e-5)
        assert batch.weight.max() == 1


def test_uniform_draws_weigh_one() -> None:
    with closing(Replay(9, 1, 1)) as replay:
        replay.add([0], [0], 0, False, False, [1])
        assert (replay.sampler(8, gamma=GAMMA).draw(np.random.default_rng(0)).weight == 1).all()


def test_a_new_transition_gets_the_largest_priority_there_was() -> None:
    replay, sampler = filled(50)
    rng = np.random.default_rng(0)
    with closing(replay):
        prioritize(sampler, rng, lambda numbers: np.where(numbers == 7, 100.0, 0.01))
        prioritize(sampler, rng, lambda _: np.full(256, 0.01))
        replay.add([50], [0], 50, False, False, [51])
        numbers = sampler.draw(rng).reward
        # Its share is (100 / 0.01)^0.6 = 251 to 50.
        assert 190 < np.count_nonzero(numbers == 50) < 240


def test_evicted_slots_are_never_drawn_nor_given_a_priority() -> None:
    replay, sampler = filled(40, capacity=40)
    rng = np.random.default_rng(0)
    with closing(replay):
        for number in range(40, 400):
            numbers = sampler.draw(rng).reward
            assert numbers[numbers >= 0].min() >= number - 40
            replay.add([number], [0], number, False, False, [number + 1])
            if number % 7 == 0:  # An episode's first row evicts without adding a transition.
                replay.cut()
                replay.add([number + 1], [0], -1, False, False, [number + 1])
                replay.cut()
                replay.add([number + 1], [0], number, False, False, [number + 1])
            if rng.random() < 0.5:  # Else the draw finds what has been added, with sums it has to mend itself.
                assert 0 <= sampler.prioritize(rng.uniform(0, 5, 256)) < 256
            else:
                sampler.draw(rng)
            begins = {begin for begin in range(41) if sampler._ranked._tree.leaves[begin] > 0}
            assert len(begins) == len(replay)
            check_sums(sampler)


def test_errors_that_are_not_finite_leave_their_priorities_and_are_counted() -> None:
    replay, sampler = filled(20)
    rng = np.random.default_rng(0)
    with closing(replay):
        prioritize(sampler, rng, lambda numbers: 1.0 + numbers)
        before = sampler._ranked._tree.leaves.copy()
        sampler.draw(rng)
        errors = np.full(256, np.nan)
        errors[::3] = np.inf
        errors[1::3] = -np.inf
        assert sampler.prioritize(errors) == 256
        np.testing.assert_array_equal(sampler._ranked._tree.leaves, before)
        assert sampler.prioritize(np.where(np.arange(256) < 10, np.nan, 1).astype(np.float16)) == 10


def check_sums(sampler: Sampler) -> None:
    assert sampler._ranked is not None
    for above, below in itertools.pairwise(sampler._ranked._tree.levels):
        np.testing.assert_array_equal(above, below.astype(np.float64).reshape(-1, 2).sum(axis=1))


@pytest.mark.parametrize("slots", [2, 3, 17, 64, 65, 1500])
def test_every_sum_in_the_tree_is_that_of_its_children(slots: int) -> None:
    replay, sampler = filled(3 * slots, capacity=slots - 1)
    rng = np.random.default_rng(0)
    with closing(replay):
        prioritize(sampler, rng, lambda _: rng.exponential(size=256), rounds=5)
        check_sums(sampler)


def test_a_restored_sampler_draws_on_as_the_saved_one_does(tmp_path: Path) -> None:
    def more(replay: Replay, first: int) -> None:
        for number in range(first, first + 25):
            replay.add([number], [0], number, False, False, [number + 1])

    rng = np.random.default_rng(0)
    with closing(Replay(60, 1, 1, "fp32", tmp_path / "map")) as replay:
        more(replay, 0)
        sampler = replay.sampler(256, gamma=GAMMA, prioritized=True)
        prioritize(sampler, rng, lambda numbers: 1 / (1 + numbers))
        numbers, priority = sampler.state()
        replay.cut()
        more(replay, 25)
        expected = [sampler.draw(np.random.default_rng(4)).reward.copy()]
        sampler.prioritize(np.arange(256))
        expected.append(sampler.draw(np.random.default_rng(5)).reward.copy())
    with closing(Replay(60, 1, 1, "fp32", tmp_path / "map")) as replay:
        again = replay.sampler(256, gamma=GAMMA, prioritized=True)
        again.restore(numbers, priority)
        np.testing.assert_array_equal(again.draw(np.random.default_rng(4)).reward, expected[0])
        again.prioritize(np.arange(256))
        np.testing.assert_array_equal(again.draw(np.random.default_rng(5)).reward, expected[1])


def test_priorities_of_another_replay_are_refused_and_of_an_emptied_one_forgotten() -> None:
    replay, sampler = filled(20)
    numbers, priority = sampler.state()
    assert priority is not None
    with closing(replay), pytest.raises(ValueError, match="another replay than one of 101 slots"):
        sampler.restore(numbers, priority[:-1])
    with closing(Replay(100, 1, 1)) as empty:
        fresh = empty.sampler(4, gamma=GAMMA, prioritized=True)
        fresh.restore({"seen": 21, "largest": 3.0}, priority)
        empty.add([0], [0], 5, False, False, [1])
        assert fresh.draw(np.random.default_rng(0)).reward.tolist() == [5, 5, 5, 5]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        pytest.param(lambda r: r.sampler(0, gamma=GAMMA), "batch size is 0", id="no batch"),
        pytest.param(lambda r: r.sampler(8, gamma=GAMMA, n_step=0), "n_step is 0", id="no step"),
        pytest.param(lambda r: r.sampler(8, gamma=GAMMA).prioritize(np.zeros(8)), "uniformly", id="uniform"),
        pytest.param(
            lambda r: r.sampler(8, gamma=GAMMA, prioritized=True).prioritize(np.zeros(8)), "nothing has", id="no draw"
        ),
        pytest.param(
            lambda r: r.sampler(8, gamma=GAMMA, prioritized=True).prioritize(np.zeros(7)), r"shape \(7,\)", id="shape"
        ),
    ],
)
def test_a_use_that_makes_no_sense_is_refused(use: Any, message: str) -> None:
    with closing(Replay(9, 1, 1)) as replay:
        replay.add([0], [0], 0, False, False, [1])
        with pytest.raises(ReplayError, match=message):
            use(replay)


def test_an_empty_or_closed_replay_is_refused() -> None:
    replay = Replay(9, 1, 1)
    for choice in (False, True):
        with pytest.raises(ReplayError, match="the replay is empty"):
            replay.sampler(8, gamma=GAMMA, prioritized=choice).draw(np.random.default_rng(0))
    sampler = replay.sampler(8, gamma=GAMMA)
    replay.close()
    with pytest.raises(ReplayError, match="closed"):
        sampler.draw(np.random.default_rng(0))


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("choice", [{}, {"n_step": 5}, {"prioritized": True}], ids=["one step", "five steps", "ranked"])
def test_a_draw_leaves_nothing_behind_and_needs_little_for_a_moment(storage: str, choice: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    with closing(Replay(5000, 17, 6, storage)) as replay:
        for _ in range(3000):
            replay.add(rng.normal(size=17), rng.uniform(-1, 1, 6), 0.0, True, False, rng.normal(size=17))
        sampler = replay.sampler(256, gamma=GAMMA, dtype=np.float16, **choice)
        errors = rng.normal(size=256).astype(np.float32)

        def draws(count: int) -> None:
            for _ in range(count):
                sampler.draw(rng)
                if "prioritized" in choice:
                    sampler.prioritize(errors)

        draws(50)
        grown, needed = [], []
        tracemalloc.start()
        try:
            for _ in range(5):
                before = tracemalloc.get_traced_memory()[0]
                tracemalloc.reset_peak()
                draws(50)
                after, peak = tracemalloc.get_traced_memory()
                grown.append(after - before)
                needed.append(peak - before)
        finally:
            tracemalloc.stop()
    # Python keeps frames and the like for reuse, now and then some more: what grows does so each time, and the smallest
    # array of a batch has 2 KiB.
    assert min(grown) < 1024
    # Six arrays of B indices, 2 KiB each: the generator's, those drawn again and the generations of rows. A batch of
    # 17 observations in fp16 alone has 8.5 KiB.
    assert min(needed) < 6 * 2048 + 4096
