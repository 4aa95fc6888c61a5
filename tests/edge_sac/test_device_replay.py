"""The working copy on a device draws what the map holds, to the bit, and each transition as often as any other."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edge_sac.device_replay import CANDIDATES, DeviceReplay
from edge_sac.errors import ReplayError
from edge_sac.replay import Replay
from edge_sac.storage import STORAGES

OBS, ACTION, BATCH, GAMMA = 3, 2, 64, 0.9
DTYPES = {torch.float16: np.float16, torch.float32: np.float32}


def device_copy(
    replay: Replay, n_step: int = 1, dtype: torch.dtype = torch.float32, batch: int = BATCH
) -> DeviceReplay:
    generator = torch.Generator().manual_seed(0)
    return DeviceReplay(replay.ring, batch, gamma=GAMMA, n_step=n_step, dtype=dtype, generator=generator)


class Life:
    """Episodes of random lengths and ends, added a few transitions at a time."""

    def __init__(self, replay: Replay, seed: int = 0, longest: int = 7) -> None:
        self.replay, self.longest = replay, longest
        self._rng = np.random.default_rng(seed)
        self._left = 0

    def add(self, count: int) -> None:
        rng = self._rng
        for _ in range(count):
            if self._left == 0:
                self._left = int(rng.integers(1, self.longest + 1))
                self._obs = rng.normal(size=OBS)
            self._left -= 1
            end = rng.integers(3) if self._left == 0 else 3
            following = rng.normal(size=OBS) * (1 + self.replay.ring.written / 50)
            self.replay.add(self._obs, rng.uniform(-1, 1, ACTION), rng.normal(), end == 0, end == 1, following)
            self._obs = following
            if end == 2:
                self.replay.cut()


class Chosen:
    """A generator that draws the slots it was given."""

    def __init__(self, slots: torch.Tensor) -> None:
        self._slots: Any = slots.numpy()

    def integers(self, low: int, high: int, size: int) -> Any:
        assert (self._slots >= low).all()
        assert (self._slots < high).all()
        assert size == len(self._slots), "a slot that begins no transition was drawn again"
        return self._slots


def check_draw(replay: Replay, copied: DeviceReplay, n_step: int, dtype: torch.dtype) -> None:
    """See that a draw is what the host draws from the same slots."""
    drawn: list[torch.Tensor] = []
    draw_slots = copied._draw_slots

    def noted() -> torch.Tensor:
        drawn.append(draw_slots())
        return drawn[-1]

    copied._draw_slots = noted  # type: ignore[method-assign]
    found = copied.draw()
    copied._draw_slots = draw_slots  # type: ignore[method-assign]
    sampler = replay.sampler(BATCH, gamma=GAMMA, n_step=n_step, dtype=DTYPES[dtype])
    expected = sampler.draw(Chosen(drawn[0]))  # type: ignore[arg-type]
    for name, value in vars(expected).items():
        ours = getattr(found, name).numpy()
        assert ours.dtype == value.dtype, name
        assert ours.tobytes() == value.tobytes(), name


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_draw_is_what_the_map_holds_of_the_same_slots(storage: str, n_step: int, dtype: torch.dtype) -> None:
    """Mirrored in unequal steps, over the end of the ring, many times round; u8 changes its ranges on the way."""
    replay = Replay(37, OBS, ACTION, storage)
    life, copied = Life(replay), device_copy(replay, n_step, dtype)
    for count in [1, 1, 5, 2, 9, 30, 3, 120, 1, 38, 17, 1, 1]:
        life.add(count)
        copied.follow()
        check_draw(replay, copied, n_step, dtype)


def test_copy_of_a_large_map_takes_several_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge_sac.device_replay._STAGED", 8)
    replay = Replay(100, OBS, ACTION)
    life = Life(replay)
    life.add(90)
    copied = device_copy(replay)
    for count in (0, 60, 333):
        life.add(count)
        copied.follow()
        check_draw(replay, copied, 1, torch.float32)


def test_replay_opened_again_is_mirrored_whole(tmp_path: Path) -> None:
    replay = Replay(40, OBS, ACTION, "u8", tmp_path / "map")
    Life(replay).add(75)
    replay.close()
    again = Replay(40, OBS, ACTION, "u8", tmp_path / "map")
    copied = device_copy(again, n_step=2)
    copied.follow()
    check_draw(again, copied, 2, torch.float32)
    again.close()


def test_row_that_was_lost_begins_no_transition_and_ends_none(tmp_path: Path) -> None:
    path = tmp_path / "map"
    replay = Replay(40, OBS, ACTION, "fp16", path)
    for step in range(30):
        replay.add(np.full(OBS, step), np.zeros(ACTION), float(step), False, False, np.full(OBS, step + 1))
    at, row_bytes = replay.ring._at, replay.bytes_per_transition
    replay.close()
    with path.open("r+b") as file:
        file.seek(at + 12 * row_bytes)
        file.write(bytes(row_bytes - 1))
    again = Replay(40, OBS, ACTION, "fp16", path)
    copied = device_copy(again, batch=2_000)
    copied.follow()
    # Row 12 ended transition 11 and began transition 12.
    assert set(copied.draw().reward.tolist()) == set(range(30)) - {11, 12}
    again.close()


@pytest.mark.parametrize("written", [20, 41, 60])
def test_first_row_without_its_transition_is_left_out_until_it_has_one(written: int) -> None:
    """A kill between the two rows of an episode's first transition leaves such a row, and it may be the oldest's."""
    replay = Replay(40, OBS, ACTION)
    life = Life(replay, longest=5)
    while replay.ring.written < written or life._left:
        life.add(1)
    ring = replay.ring
    append, rows = ring.append, []
    ring.append = rows.append  # type: ignore[method-assign, assignment]
    replay.add(np.ones(OBS), np.zeros(ACTION), 0.0, False, False, np.ones(OBS))
    first = rows[0]
    ring.append = append  # type: ignore[method-assign]
    append(first)
    copied = device_copy(replay)
    for _ in range(3):
        copied.follow()
        assert copied._begins(copied._newest_begin[None]).all()
        for _ in range(5):
            check_draw(replay, copied, 1, torch.float32)
        replay._open = False
        Life(replay, seed=written).add(2)
        replay.cut()


def test_every_transition_is_drawn_as_often_as_any_other() -> None:
    """80,000 draws of 40: each count within 5 standard deviations, which one in 40,000 such tests would miss."""
    replay = Replay(60, OBS, ACTION, "fp32")
    Life(replay, longest=4).add(100)
    copied = device_copy(replay, batch=8_000)
    copied.follow()
    counts: Counter[float] = Counter()
    for _ in range(10):
        counts.update(copied.draw().reward.tolist())
    assert len(counts) == len(replay)
    share = 80_000 / len(replay)
    assert max(abs(count - share) for count in counts.values()) < 5 * share**0.5


def drawn_at(slot: int, replay: Replay, copied: DeviceReplay) -> float:
    """Return the reward of what is drawn when every candidate is one slot."""
    held = min(replay.ring.written, replay.ring.layout.slots)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "rand", lambda *_, out, **__: out.fill_((slot + 0.5) / held))
        (reward,) = set(copied.draw().reward.tolist())
    return float(reward)


def test_where_no_candidate_begins_a_transition_the_episodes_last_is_taken_or_the_newest() -> None:
    replay = Replay(9, OBS, ACTION, "fp32")

    def add(reward: float, ends: bool) -> None:
        replay.add(np.zeros(OBS), np.zeros(ACTION), reward, False, ends, np.zeros(OBS))

    for step in range(3):
        add(step, step == 2)
    for step in (3, 4):
        add(step, False)
    copied = device_copy(replay, batch=4)
    copied.follow()
    assert [drawn_at(slot, replay, copied) for slot in (0, 1, 2, 4, 5)] == [0, 1, 2, 3, 4]
    # The first episode's final observation, and the newest row.
    assert [drawn_at(slot, replay, copied) for slot in (3, 6)] == [2, 4]
    for step in range(5, 11):
        add(step, False)
    copied.follow()
    # Its last transition has been overwritten: its final observation in slot 3 is the oldest row now.
    assert replay.ring.oldest == 3
    assert drawn_at(3, replay, copied) == 10


def test_number_just_under_one_draws_the_last_slot_and_none_beyond() -> None:
    held = torch.tensor(10**9 + 7)
    uniform = torch.full((CANDIDATES, 1), 1 - 2**-53, dtype=torch.float64)
    assert int(torch.minimum(uniform.mul(held).long(), held - 1).max()) == 10**9 + 6


def test_empty_or_closed_replay_is_refused() -> None:
    replay = Replay(20, OBS, ACTION)
    copied = device_copy(replay)
    with pytest.raises(ReplayError, match="empty"):
        copied.follow()
    replay.close()
    with pytest.raises(ReplayError, match="closed"):
        copied.follow()
