"""What each storage keeps of a value, what it refuses, and how the ranges of u8 follow the values."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_sac import codec_byte, value_ranges
from edge_sac.codec_byte import CALIBRATION_ROWS, LARGEST
from edge_sac.errors import ReplayError
from edge_sac.replay import Replay
from edge_sac.storage import STORAGES
from edge_sac.value_ranges import LEVELS, PROVISIONAL

FIRST_STEP = 2 * PROVISIONAL / LEVELS


def fill(replay: Replay, observations: Sequence[Sequence[float]], cut_every: int = 10**9) -> None:
    """Add each pair of neighbours as a transition of one episode, cut every so often."""
    width = replay.ring.layout.action_dim
    for i, (before, after) in enumerate(itertools.pairwise(observations)):
        if i % cut_every == 0:
            replay.cut()
        replay.add(before, np.zeros(width), 0.0, False, False, after)


def stored(replay: Replay) -> NDArray[np.float32]:
    return replay.read(replay.ring.oldest, replay.ring.written).obs


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_a_batch_is_what_is_read_rounded_to_the_dtype_asked_for(storage: str, dtype: str) -> None:
    rng = np.random.default_rng(0)
    with closing(Replay(60, 3, 2, storage)) as replay:
        for number in range(100):
            obs, next_obs = rng.normal(size=(2, 3)) * (1 + number)
            replay.add(obs, rng.uniform(-1, 1, 2), number, True, False, next_obs)
        rows = replay.read(replay.ring.oldest, replay.ring.written)
        batch = replay.sampler(300, gamma=0.9, dtype=dtype).draw(rng)
        last = [rows.reward.tolist().index(reward) for reward in batch.reward]
        np.testing.assert_array_equal(batch.obs, rows.obs[np.array(last) - 1].astype(dtype))
        np.testing.assert_array_equal(batch.next_obs, rows.obs[last].astype(dtype))
        np.testing.assert_array_equal(batch.action, rows.action[last].astype(dtype))


@pytest.mark.parametrize("storage", STORAGES)
def test_an_action_of_minus_one_zero_and_one_is_kept_exactly(storage: str) -> None:
    with closing(Replay(9, 1, 3, storage)) as replay:
        replay.add([0], [-1, 0, 1], 0.0, True, False, [0])
        assert replay.read(1, 2).action.tolist() == [[-1, 0, 1]]


def test_u8_keeps_actions_to_half_of_a_127th() -> None:
    actions = np.linspace(-1, 1, 1001)
    with closing(Replay(9, 1, 1001, "u8")) as replay:
        replay.add([0], actions, 0.0, True, False, [0])
        # And what float32 rounds.
        assert np.abs(replay.read(1, 2).action[0] - actions).max() <= 0.5 / 127 + 1e-7


@pytest.mark.parametrize("action", [1.01, -1.5, np.nan, np.inf, 1e300])
def test_u8_refuses_an_action_beyond_one_by_name(action: float) -> None:
    with (
        closing(Replay(9, 1, 2, "u8", action_names=["arm", "leg"])) as replay,
        pytest.raises(ReplayError, match=r"action channel 'leg' is .* holds actions from -1 to 1"),
    ):
        replay.add([0], [0, action], 0.0, False, False, [0])


def test_just_round_keeps_two_decimals_and_clips_at_127() -> None:
    values = [0.0, 0.004, 0.006, -0.016, 1.234, 126.994, 127.2, -4000.0, 1e300]
    with closing(Replay(9, len(values), 1, "just-round")) as replay:
        fill(replay, [values, values])
        # 7 significant digits of float32.
        expected = [0.0, 0.0, 0.01, -0.02, 1.23, 126.99, 127.0, -127.0, 127.0]
        np.testing.assert_allclose(stored(replay)[0], expected, rtol=1e-6)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_no_number_is_refused_with_nothing_stored(storage: str, value: float) -> None:
    with closing(Replay(9, 2, 1, storage, obs_names=["angle", "speed"])) as replay:
        fill(replay, [[0, 0], [1, 1]])
        with pytest.raises(ReplayError, match=rf"next_obs channel 'speed' is {value}"):
            replay.add([1, 1], [0], 0.0, False, False, [50, value])
        assert replay.state() == {"written": 2, "added": 1}
        replay.add([1, 1], [0], 0.0, False, False, [2, 2])
        np.testing.assert_allclose(stored(replay)[:, 0], [0, 1, 2], atol=FIRST_STEP)


def test_u8_refuses_what_no_range_in_float32_holds() -> None:
    with closing(Replay(9, 1, 1, "u8")) as replay:
        fill(replay, [[0], [LARGEST], [-LARGEST]])
        # Doubled, the range spans up to four times the size.
        np.testing.assert_allclose(stored(replay)[:, 0] / LARGEST, [0, 1, -1], atol=4 / LEVELS)
        with pytest.raises(ReplayError, match=r"'obs\[0\]' is 4\.2.*beyond the 2\.1e\+37"):
            replay.add([-LARGEST], [0], 0.0, False, False, [2 * LARGEST])


def test_u8_keeps_a_value_to_half_a_step_of_the_first_range() -> None:
    values = np.linspace(-PROVISIONAL, PROVISIONAL, 801)
    with closing(Replay(9, 801, 1, "u8")) as replay:
        fill(replay, [values, values])
        # And what float32 rounds at 4.
        assert np.abs(stored(replay) - values).max() <= FIRST_STEP / 2 + 1e-6


def test_u8_doubles_the_side_that_is_exceeded_and_leaves_every_other_range_and_every_older_row_alone() -> None:
    with closing(Replay(99, 2, 1, "u8")) as replay:
        fill(replay, [[0.5, 0.5], [1.5, 1.5]])
        before = replay.ring.rows[:2].tobytes()
        old = stored(replay).copy()
        replay.add([1.5, 1.5], [0], 0.0, False, False, [4.1, -3.0])
        replay.add([4.1, -3.0], [0], 0.0, False, False, [4.1, -50.0])
        assert replay.ring.rows[:2].tobytes() == before
        np.testing.assert_array_equal(stored(replay)[:2], old)
        table = replay.ring.obs_codec.table
        assert table.first[: table.count].tolist() == [0, 2, 3]
        low, high = table.low[: table.count], table.low[: table.count] + LEVELS * table.step[: table.count]
        # -4 to 4 is doubled once upwards, and three times downwards: to 64 below 4.
        np.testing.assert_allclose(low, [[-4, -4], [-4, -4], [-4, -60]], rtol=1e-6)
        np.testing.assert_allclose(high, [[4, 4], [12, 4], [12, 4]], rtol=1e-6)
        np.testing.assert_allclose(stored(replay)[3], [4.1, -50], atol=32 / LEVELS)


def test_ranges_made_for_a_row_that_was_then_refused_are_taken_back() -> None:
    with closing(Replay(99, 1, 1, "u8")) as replay:
        fill(replay, [[0], [1]])
        replay.cut()
        with pytest.raises(ReplayError, match="is nan"):
            replay.add([100], [0], 0.0, False, False, [np.nan])
        fill(replay, [[2], [3]])
        table = replay.ring.obs_codec.table
        assert table.first[: table.count].tolist() == [0, 2]


def test_an_obs_that_does_not_continue_makes_no_range() -> None:
    with closing(Replay(99, 1, 1, "u8")) as replay:
        fill(replay, [[0], [1]])
        for wrong in (2.0, 1000.0, np.nan):
            with pytest.raises(ReplayError, match=r"but the next_obs before was 0\.98"):
                replay.add([wrong], [0], 0.0, False, False, [1])
        assert replay.ring.obs_codec.table.count == 1


def test_a_full_table_is_refused_with_channel_value_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(value_ranges, "ENTRIES", 3)
    with closing(Replay(99, 2, 1, "u8", obs_names=["angle", "speed"])) as replay:
        fill(replay, [[0, 0], [0, 5], [0, 20], [0, 50]])
        with pytest.raises(ReplayError, match=r"'speed' is 1000\.0, outside of -4 to 60.*full.*storage fp16"):
            replay.add([0, 50], [0], 0.0, False, False, [0, 1000])
        replay.add([0, 50], [0], 0.0, False, False, [0, 51])
        np.testing.assert_allclose(stored(replay)[-1], [0, 51], atol=32 / LEVELS)


def test_ranges_are_calibrated_once_when_an_episode_begins_after_the_first_rows() -> None:
    rng = np.random.default_rng(0)
    narrow = rng.uniform([-0.2, 0.5, 7], [0.2, 0.6, 7], (2 * CALIBRATION_ROWS, 3))
    with closing(Replay(10_000, 3, 1, "u8")) as replay:
        fill(replay, narrow.tolist(), cut_every=300)
        table = replay.ring.obs_codec.table
        assert table.calibrated[: table.count].tolist() == [False, False, True]
        # The fourth episode of 300 begins with row 3 * 301 = 903, the fifth with 1204, which is past the 1000.
        first = int(table.first[2])
        assert first == 4 * 301
        low, high = table.low[2], table.low[2] + LEVELS * table.step[2]
        # A quarter of the spread, or a step of the first range, is added to what was seen through half a step of that
        # range; the last channel had left it and was seen through steps twice as coarse.
        margin = np.maximum(0.25 * np.array([0.4, 0.1, 0]), FIRST_STEP)
        seen = 0.51 * FIRST_STEP * np.array([1, 1, 2])
        assert (np.abs(low - (np.array([-0.2, 0.5, 7]) - margin)) < seen).all()
        assert (np.abs(high - (np.array([0.2, 0.6, 7]) + margin)) < seen).all()
        episode = 4 * 300
        error = np.abs(stored(replay)[first : first + 300] - narrow[episode : episode + 300])
        assert (error.max(axis=0) <= 0.51 * table.step[2]).all()
        assert (table.step[2][:2] < FIRST_STEP / 12).all()


def test_a_ring_smaller_than_the_calibration_is_calibrated_on_what_it_holds() -> None:
    with closing(Replay(50, 1, 1, "u8")) as replay:
        fill(replay, [[0.5 if i > 600 else -0.5] for i in range(2 * CALIBRATION_ROWS)], cut_every=10)
        table = replay.ring.obs_codec.table
        assert table.low[table.count - 1][0] == pytest.approx(0.5 - FIRST_STEP, abs=FIRST_STEP)


def test_ranges_are_found_again_in_the_file(tmp_path: Path) -> None:
    values: list[list[float]] = [[float(x)] for x in (0, 1, 5, 5, -30, 2, 200, 3)]
    with closing(Replay(99, 1, 1, "u8", tmp_path / "map")) as replay:
        fill(replay, values)
        before = stored(replay)
    with closing(Replay(99, 1, 1, "u8", tmp_path / "map")) as replay:
        np.testing.assert_array_equal(stored(replay), before)
        fill(replay, [[3], [190]])
        np.testing.assert_array_equal(stored(replay)[:8], before)
        np.testing.assert_allclose(stored(replay)[-1], 190, atol=256 / LEVELS)


def test_a_damaged_range_takes_the_rows_that_were_written_with_it(tmp_path: Path) -> None:
    with closing(Replay(99, 1, 1, "u8", tmp_path / "map")) as replay:
        fill(replay, [[0], [1], [50], [51]])
        table_at = 4096
    data = bytearray((tmp_path / "map").read_bytes())
    data[table_at + 9] ^= 1
    (tmp_path / "map").write_bytes(data)
    with closing(Replay(99, 1, 1, "u8", tmp_path / "map")) as replay:
        assert len(replay) == 1
        np.testing.assert_allclose(stored(replay)[:2, 0], [0, 1], atol=FIRST_STEP)


def test_calibration_lies_in_the_file_like_any_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec_byte, "CALIBRATION_ROWS", 20)

    def table(replay: Replay) -> Any:
        found = replay.ring.obs_codec.table
        return found.first[: found.count].tolist(), found.calibrated[: found.count].tolist()

    with closing(Replay(99, 1, 1, "u8", tmp_path / "map")) as replay:
        fill(replay, [[0.1 * (i % 3)] for i in range(60)], cut_every=7)
        before = table(replay)
        assert before == ([0, 24], [False, True])
    with closing(Replay(99, 1, 1, "u8", tmp_path / "map")) as replay:
        fill(replay, [[0.1], [0.2]])
        assert table(replay) == before
