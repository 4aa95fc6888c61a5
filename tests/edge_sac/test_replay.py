from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge_sac.errors import ReplayError
from edge_sac.replay import Replay
from edge_sac.sampler import Batch

# What a stored transition is compared by: obs, action, reward, terminated, next_obs.
Tuple = tuple[float, float, float, bool, float]


class ListModel:
    """What a replay must hold, from the documented rule alone.

    Slots are numbered for ever, an episode of n takes n + 1, and a transition is held while its own slot is
    among the newest capacity + 1.
    """

    def __init__(self, capacity: int) -> None:
        self.slots = capacity + 1
        self.used = 0
        self.open = False
        self.stored: list[tuple[int, Tuple]] = []

    def add(self, transition: Tuple, ended: bool) -> None:
        if not self.open:
            self.used += 1
        self.stored.append((self.used - 1, transition))
        self.used += 1
        self.open = not ended

    def held(self) -> set[Tuple]:
        return {transition for slot, transition in self.stored if slot >= self.used - self.slots}


def rows_of(batch: Batch) -> set[Tuple]:
    return {
        (float(o[0]), float(a[0]), float(r), float(d) == 0, float(n[0]))
        for o, a, r, d, n in zip(batch.obs, batch.action, batch.reward, batch.discount, batch.next_obs, strict=True)
    }


def drawn(replay: Replay, batch_size: int, seed: int) -> Batch:
    return replay.sampler(batch_size, gamma=0.99).draw(np.random.default_rng(seed))


def add(replay: Replay, number: int, first: bool, terminated: bool, truncated: bool) -> Tuple:
    """Add the transition of this number, whose contents tell it from every other."""
    obs, action, reward, next_obs = 2.0 * number, number / 8, -float(number), 2.0 * (number + 1)
    if first:
        obs += 1.0
    replay.add([obs, -obs], [action], reward, terminated, truncated, [next_obs, -next_obs])
    return (obs, action, reward, terminated, next_obs)


def everything_in(replay: Replay) -> set[Tuple]:
    # 40 draws per transition miss one of at most 40 with a chance of 40 e^-40, 2e-16.
    return rows_of(drawn(replay, 40 * len(replay), 1))


episodes = st.lists(
    st.tuples(st.integers(1, 7), st.sampled_from(["terminated", "truncated", "both", "cut"])),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(capacity=st.integers(1, 12), plan=episodes)
def test_held_transitions_are_exactly_those_the_rule_says_whatever_the_episodes(
    capacity: int, plan: list[tuple[int, str]]
) -> None:
    model = ListModel(capacity)
    number = 0
    with closing(Replay(capacity, 2, 1)) as replay:
        for length, end in plan:
            for i in range(length):
                last = i == length - 1
                terminated = last and end in ("terminated", "both")
                truncated = last and end in ("truncated", "both")
                transition = add(replay, number, i == 0, terminated, truncated)
                model.add(transition, terminated or truncated)
                number += 1
                assert len(replay) == len(model.held())
                assert everything_in(replay) == model.held()
            if end == "cut":
                replay.cut()
                model.open = False
                assert everything_in(replay) == model.held()
        assert replay.state()["added"] == number


@pytest.mark.parametrize(
    ("capacity", "lengths"),
    [
        pytest.param(1, [1, 1, 1], id="capacity 1, episodes of 1"),
        pytest.param(1, [4], id="capacity 1, one long episode"),
        pytest.param(4, [4], id="truncated on the last slot"),
        pytest.param(4, [4, 3], id="wraps around at an episode's end"),
        pytest.param(4, [5, 1, 1], id="wraps around inside an episode"),
    ],
)
def test_named_boundaries_hold_what_the_rule_says(capacity: int, lengths: list[int]) -> None:
    model = ListModel(capacity)
    number = 0
    with closing(Replay(capacity, 2, 1)) as replay:
        for length in lengths:
            for i in range(length):
                last = i == length - 1
                model.add(add(replay, number, i == 0, False, last), last)
                number += 1
        assert len(replay) == len(model.held())
        assert everything_in(replay) == model.held()


def test_one_unbroken_episode_fills_the_capacity() -> None:
    with closing(Replay(50, 2, 1)) as replay:
        for number in range(120):
            add(replay, number, number == 0, False, False)
        assert len(replay) == 50


def test_sampling_is_uniform_over_transitions_of_short_and_long_episodes() -> None:
    with closing(Replay(30, 2, 1)) as replay:
        number = 0
        for length in (1, 1, 1, 10, 1, 5):
            for i in range(length):
                add(replay, number, i == 0, i == length - 1, False)
                number += 1
        draws = 19_000
        rewards = drawn(replay, draws, 7).reward
        counts = np.bincount((-rewards).astype(np.int64), minlength=number)
    expected = draws / number
    # Five standard deviations of a binomial count, for each of 19 transitions.
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)


def test_one_transition_in_a_large_ring_is_found() -> None:
    with closing(Replay(100_000, 2, 1)) as replay:
        stored = add(replay, 3, True, True, False)
        assert rows_of(drawn(replay, 8, 0)) == {stored}


def test_the_same_generator_draws_the_same_batch() -> None:
    with closing(Replay(30, 2, 1)) as replay:
        for number in range(25):
            add(replay, number, number % 5 == 0, number % 5 == 4, False)
        first, again, other = (drawn(replay, 64, seed).reward for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_a_batch_is_gathered_into_the_same_arrays_each_time() -> None:
    with closing(Replay(30, 2, 1)) as replay:
        add(replay, 0, True, False, False)
        rng, sampler = np.random.default_rng(0), replay.sampler(8, gamma=0.99)
        assert sampler.draw(rng).obs is sampler.draw(rng).obs


def test_values_are_stored_in_the_format_asked_for_and_rewards_in_float32() -> None:
    for storage, dtype in (("fp16", "float16"), ("fp32", "float32")):
        with closing(Replay(3, 2, 1, storage)) as replay:
            replay.add([0.1, 0.2], [0.3], 0.1, False, False, [0.4, 0.5])
            batch = replay.sampler(1, gamma=0.99, dtype=dtype).draw(np.random.default_rng(0))
            assert batch.obs.dtype == batch.action.dtype == batch.next_obs.dtype == np.dtype(dtype)
            np.testing.assert_array_equal(batch.obs[0], np.array([0.1, 0.2], dtype=dtype))
            np.testing.assert_array_equal(batch.next_obs[0], np.array([0.4, 0.5], dtype=dtype))
            assert batch.reward[0] == np.float32(0.1)


@pytest.mark.parametrize(("storage", "most"), [("fp16", 56), ("fp32", 102), ("just-round", 56), ("u8", 34)])
def test_a_transition_of_17_observations_and_6_actions_stays_within_its_bytes(storage: str, most: int) -> None:
    with closing(Replay(10, 17, 6, storage)) as replay:
        assert replay.bytes_per_transition <= most


@pytest.mark.parametrize(
    ("obs", "action", "next_obs", "named"),
    [
        pytest.param([1, 65520.0], [0], [0, 0], "obs channel 'speed' is 65520.0", id="overflows to inf"),
        pytest.param([np.nan, 0], [0], [0, 0], "obs channel 'angle' is nan", id="nan"),
        pytest.param([0, 0], [-np.inf], [0, 0], "action channel 'motor' is -inf", id="infinite action"),
        pytest.param([0, 0], [0], [0, -1e30], r"next_obs channel 'speed' is -1e\+30", id="next observation"),
    ],
)
def test_a_value_fp16_cannot_hold_is_refused_by_channel_and_value(
    obs: list[float], action: list[float], next_obs: list[float], named: str
) -> None:
    with closing(Replay(5, 2, 1, obs_names=["angle", "speed"], action_names=["motor"])) as replay:
        with pytest.raises(ReplayError, match=named):
            replay.add(obs, action, 0.0, False, False, next_obs)
        assert len(replay) == 0
        assert replay.state() == {"written": 0, "added": 0}


def test_the_largest_fp16_value_is_kept() -> None:
    with closing(Replay(5, 2, 1)) as replay:
        replay.add([65504.0, 65519.0], [0.0], 0.0, False, False, [-65504.0, 0.0])
        assert drawn(replay, 1, 0).obs.tolist() == [[65504.0, 65504.0]]


@pytest.mark.parametrize("reward", [np.nan, np.inf, -np.inf, 1e39])
def test_a_reward_that_float32_cannot_hold_is_refused(reward: float) -> None:
    with closing(Replay(5, 2, 1)) as replay, pytest.raises(ReplayError, match="reward is"):
        replay.add([0, 0], [0], reward, False, False, [0, 0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        pytest.param(lambda r: r.add([0], [0], 0.0, False, False, [0, 0]), "obs has shape", id="obs"),
        pytest.param(lambda r: r.add([0, 0], 0, 0.0, False, False, [0, 0]), "action has shape", id="action"),
        pytest.param(lambda r: drawn(r, 4, 0), "the replay is empty", id="empty"),
        pytest.param(lambda r: drawn(r, 0, 0), "batch size is 0", id="no batch"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused(call: Callable[[Replay], Any], message: str) -> None:
    with closing(Replay(5, 2, 1)) as replay, pytest.raises(ReplayError, match=message):
        call(replay)


def test_a_reset_without_an_end_is_refused_and_accepted_after_a_cut() -> None:
    with closing(Replay(9, 2, 1, obs_names=["angle", "speed"])) as replay:
        add(replay, 0, True, False, False)
        with pytest.raises(ReplayError, match=r"'angle' is 9, but the next_obs before was 2.0.*cut\(\)"):
            replay.add([9, 9], [0], 0.0, False, False, [8, 8])
        assert replay.open_episode
        replay.cut()
        assert not replay.open_episode
        replay.add([9, 9], [0], 0.0, False, False, [8, 8])
        assert len(replay) == 2


def test_an_episode_continues_when_only_rounding_tells_the_observations_apart() -> None:
    with closing(Replay(9, 2, 1)) as replay:
        replay.add([0.0, 0.0], [0], 0.0, False, False, [0.1, -0.0])
        replay.add(np.array([0.1, 0.0], dtype=np.float16), [0], 0.0, False, False, [1, 1])
        assert replay.state() == {"written": 3, "added": 2}


@pytest.mark.parametrize(
    ("capacity", "storage", "message"),
    [(0, "fp16", "capacity is 0"), (-3, "fp16", "capacity is -3"), (1, "bf16", "'bf16'; it must be one of fp16")],
)
def test_an_impossible_size_or_storage_is_refused(capacity: int, storage: str, message: str) -> None:
    with pytest.raises(ReplayError, match=message):
        Replay(capacity, 2, 1, storage)


def test_a_time_step_is_kept_to_nine_significant_bits() -> None:
    with closing(Replay(200, 1, 1)) as replay:
        steps = np.geomspace(61.1e-6, 65_000, 150)
        for dt in steps:
            replay.add([0], [0], 0.0, True, False, [0], float(dt))
        found = replay.read(replay.ring.oldest, replay.ring.written).dt
        # Half of 2^-8 from the 9 bits, and 2^-12 where fp16, which it passes through, had rounded before.
        np.testing.assert_allclose(found[found > 0], steps[-len(found[found > 0]) :], rtol=2**-9 + 2**-12)


@pytest.mark.parametrize("dt", [-0.1, np.nan, np.inf, 66_000.0])
def test_a_time_step_that_cannot_be_kept_is_refused(dt: float) -> None:
    with closing(Replay(5, 1, 1)) as replay, pytest.raises(ReplayError, match="dt is"):
        replay.add([0], [0], 0.0, False, False, [0], dt)


def test_rows_are_read_by_number_with_what_led_to_them() -> None:
    with closing(Replay(4, 2, 1)) as replay:
        for number in range(6):
            add(replay, number, number == 0, False, False)
        rows = replay.read(2, 7)
        assert rows.obs[:, 0].tolist() == [4, 6, 8, 10, 12]
        assert rows.reward.tolist() == [-1, -2, -3, -4, -5]
        for first, last in ((1, 5), (6, 8), (5, 4)):
            with pytest.raises(ReplayError, match="are not held: the replay has 2 to 7"):
                replay.read(first, last)


def test_as_many_names_as_channels_are_asked_for() -> None:
    with pytest.raises(ReplayError, match="1 obs names given for 2 channels"):
        Replay(1, 2, 1, obs_names=["angle"])


def test_a_closed_replay_refuses_every_use(tmp_path: Path) -> None:
    replay = Replay(5, 2, 1, path=tmp_path / "transitions")
    replay.close()
    replay.close()
    for use in (replay.cut, replay.sync, lambda: replay.read(0, 0), lambda: replay.sampler(1, gamma=0.99)):
        with pytest.raises(ReplayError, match="closed"):
            use()
    with pytest.raises(ReplayError, match="closed"):
        add(replay, 0, True, False, False)
