from __future__ import annotations

import errno
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from edge_sac import replay as replay_module
from edge_sac import replay_map as replay_map_module
from edge_sac.errors import Refused, ReplayError
from edge_sac.replay import Replay
from edge_sac.replay_map import HEADER_BYTES

OBS, ACTIONS, CAPACITY = 17, 6, 40

# Adds transitions for ever, each filled with its own number; a shared word counts the completed ones.
WRITER = """
import mmap, random, sys
from pathlib import Path
import numpy as np
from edge_sac.replay import Replay

path, ack_path, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
replay = Replay({capacity}, {obs}, {actions}, path=path)
with ack_path.open("r+b") as file:
    ack = memoryview(mmap.mmap(file.fileno(), 8)).cast("Q")
lengths = random.Random(seed)
number = replay.state()["added"]
def obs(number):
    row = np.empty({obs}, dtype=np.float32)
    row[0::2], row[1::2] = number % 1000, number // 1000 % 1000
    return row
def action(number):
    return np.full({actions}, number % 1000, dtype=np.float32)
while True:
    length = lengths.randint(1, 9)
    for i in range(length):
        last = i == length - 1
        replay.add(obs(number), action(number), number, last and number % 2 == 0, last, obs(number + 1))
        number += 1
        ack[0] = number
"""


def numbers_in(replay: Replay) -> list[int]:
    """Return the numbers of the transitions held, sorted; fails if any part of one belongs to another."""
    batch = replay.sample(40 * len(replay), np.random.default_rng(0))
    number = batch.reward.astype(np.int64)
    for values, of in ((batch.obs, number), (batch.next_obs, number + 1)):
        np.testing.assert_array_equal(values[:, 0::2], np.repeat((of % 1000)[:, None], 9, axis=1))
        np.testing.assert_array_equal(values[:, 1::2], np.repeat((of // 1000 % 1000)[:, None], 8, axis=1))
    np.testing.assert_array_equal(batch.action, np.repeat((number % 1000)[:, None], ACTIONS, axis=1))
    return sorted(set(number.tolist()))


def test_sigkill_at_random_moments_loses_at_most_the_transition_being_written(tmp_path: Path) -> None:
    path, ack_path = tmp_path / "transitions", tmp_path / "ack"
    ack_path.write_bytes(bytes(8))
    script = WRITER.format(capacity=CAPACITY, obs=OBS, actions=ACTIONS)
    moments = random.Random(5)
    for seed in range(10):
        before = int.from_bytes(ack_path.read_bytes(), "little")
        wanted = before + moments.randint(1, 3000)
        child = subprocess.Popen([sys.executable, "-c", script, str(path), str(ack_path), str(seed)])
        try:
            deadline = time.monotonic() + 60
            while int.from_bytes(ack_path.read_bytes(), "little") < wanted:
                assert child.poll() is None, "the writer ended by itself"
                assert time.monotonic() < deadline, "the writer added nothing for 60 s"
        finally:
            child.send_signal(signal.SIGKILL)
            child.wait(timeout=30)
        acknowledged = int.from_bytes(ack_path.read_bytes(), "little")
        with closing(Replay(CAPACITY, OBS, ACTIONS, path=path)) as replay:
            held = numbers_in(replay)
            added = replay.state()["added"]
            assert added - acknowledged in (0, 1)
            # Held without a gap up to the newest; episode ends take at most half of the slots.
            assert held == list(range(added - len(replay), added))
            assert len(held) >= CAPACITY // 2 - 1
        ack_path.write_bytes(added.to_bytes(8, "little"))


def add_number(replay: Replay, number: int, terminated: bool, truncated: bool) -> None:
    def obs(of: int) -> np.ndarray[Any, Any]:
        row = np.empty(OBS, dtype=np.float32)
        row[0::2], row[1::2] = of % 1000, of // 1000 % 1000
        return row

    replay.add(obs(number), np.full(ACTIONS, number % 1000), number, terminated, truncated, obs(number + 1))


@pytest.mark.parametrize("capacity", [1, 2, 5])
def test_a_death_before_any_line_of_add_leaves_a_whole_replay(tmp_path: Path, capacity: int) -> None:
    """Copies the file before each line of add() and of the map runs: what a SIGKILL there would leave."""
    path, copy = tmp_path / "transitions", tmp_path / "copy"
    images: list[tuple[int, bytes]] = []
    number = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in (replay_module.__file__, replay_map_module.__file__):
            return None
        if event == "line" and (not images or images[-1][1] != (image := path.read_bytes())):
            images.append((number, path.read_bytes() if not images else image))
        return trace

    with closing(Replay(capacity, OBS, ACTIONS, path=path)) as replay:
        for length in (1, 3, 2, 1, 1, 4):
            for i in range(length):
                tracer = sys.gettrace()
                sys.settrace(trace)
                try:
                    add_number(replay, number, i == length - 1 and length % 2 == 0, i == length - 1)
                finally:
                    sys.settrace(tracer)
                number += 1
    assert len(images) > 6 * number
    for completed, image in images:
        copy.write_bytes(image)
        with closing(Replay(capacity, OBS, ACTIONS, path=copy)) as survivor:
            added = survivor.state()["added"]
            assert added - completed in (0, 1)
            held = numbers_in(survivor) if len(survivor) else []
            assert held == list(range(added - len(survivor), added))
            add_number(survivor, added, True, False)
            assert added in numbers_in(survivor)


def test_reopening_restores_everything_from_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "transitions"
    with closing(Replay(CAPACITY, OBS, ACTIONS, path=path)) as replay:
        for number in range(60):
            add_number(replay, number, number % 7 == 6, False)
        state, held = replay.state(), numbers_in(replay)
        drawn = replay.sample(32, np.random.default_rng(2)).reward.copy()
    with closing(Replay(CAPACITY, OBS, ACTIONS, path=path)) as replay:
        assert replay.state() == state
        assert numbers_in(replay) == held
        np.testing.assert_array_equal(replay.sample(32, np.random.default_rng(2)).reward, drawn)
        assert not replay.open_episode, "the episode the last process left open is cut"


def test_a_replay_newer_than_the_checkpoint_says_by_how_much(tmp_path: Path) -> None:
    path = tmp_path / "transitions"
    with closing(Replay(CAPACITY, OBS, ACTIONS, path=path)) as replay:
        add_number(replay, 0, False, False)
        checkpointed = replay.state()
        add_number(replay, 1, False, True)
        add_number(replay, 2, False, False)
    with closing(Replay(CAPACITY, OBS, ACTIONS, path=path)) as replay:
        assert replay.added_since(checkpointed) == 2
        path.unlink()
    with (
        closing(Replay(CAPACITY, OBS, ACTIONS, path=path)) as replay,
        pytest.raises(ReplayError, match="deleted or belongs"),
    ):
        replay.added_since(checkpointed)


@pytest.mark.parametrize(
    ("other", "named"),
    [
        pytest.param((41, OBS, ACTIONS, "float16"), r"capacity 40 \(asked for 41\)", id="capacity"),
        pytest.param((40, 16, ACTIONS, "float16"), r"observations 17 \(asked for 16\)", id="observations"),
        pytest.param((40, OBS, 7, "float16"), r"actions 6 \(asked for 7\)", id="actions"),
        pytest.param((40, OBS, ACTIONS, "float32"), r"bytes per value 2 \(asked for 4\)", id="dtype"),
    ],
)
def test_a_file_of_another_shape_is_refused_by_what_differs(
    tmp_path: Path, other: tuple[int, int, int, str], named: str
) -> None:
    path = tmp_path / "transitions"
    Replay(CAPACITY, OBS, ACTIONS, path=path).close()
    before = path.read_bytes()
    with pytest.raises(Refused, match=named):
        Replay(*other, path=path)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("offset", "value", "message"),
    [
        pytest.param(0, b"PK", "not a replay file", id="magic"),
        pytest.param(13, b"\x07", "header is damaged", id="shape"),
        pytest.param(64, (7).to_bytes(8, "little"), "no run can leave that", id="claimed"),
        pytest.param(88, (9).to_bytes(8, "little"), "no run can leave that", id="added"),
    ],
)
def test_a_damaged_header_is_refused(tmp_path: Path, offset: int, value: bytes, message: str) -> None:
    path = tmp_path / "transitions"
    Replay(CAPACITY, OBS, ACTIONS, path=path).close()
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(value)
    with pytest.raises(Refused, match=message):
        Replay(CAPACITY, OBS, ACTIONS, path=path)


@pytest.mark.parametrize("size", [0, 5, HEADER_BYTES, HEADER_BYTES + 41 * 52 - 1, HEADER_BYTES + 41 * 52 + 1])
def test_a_file_of_the_wrong_length_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "transitions"
    Replay(CAPACITY, OBS, ACTIONS, path=path).close()
    os.truncate(path, size)
    with pytest.raises(Refused, match=r"not a replay file|bytes long"):
        Replay(CAPACITY, OBS, ACTIONS, path=path)


def test_a_second_user_of_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "transitions"
    with (
        closing(Replay(CAPACITY, OBS, ACTIONS, path=path)),
        pytest.raises(Refused, match="another process is using"),
    ):
        Replay(CAPACITY, OBS, ACTIONS, path=path)


def test_closing_works_while_an_error_from_adding_is_handled(tmp_path: Path) -> None:
    path = tmp_path / "transitions"
    replay = Replay(CAPACITY, OBS, ACTIONS, path=path)
    add_number(replay, 0, False, False)
    try:
        add_number(replay, 7, False, False)
    except ReplayError:
        replay.close()
        with closing(Replay(CAPACITY, OBS, ACTIONS, path=path)) as reopened:
            assert numbers_in(reopened) == [0]


def test_a_full_disk_is_refused_at_start_with_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(Refused, match=r"needs 6228 bytes on disk, \d+ are free.*52 bytes each"):
        Replay(CAPACITY, OBS, ACTIONS, path=tmp_path / "transitions")
    assert list(tmp_path.iterdir()) == []


def test_the_disk_space_is_reserved_at_start(tmp_path: Path) -> None:
    path = tmp_path / "transitions"
    with closing(Replay(100_000, OBS, ACTIONS, path=path)):
        status = path.stat()
    assert status.st_blocks * 512 >= status.st_size == HEADER_BYTES + 100_001 * 52


def test_more_memory_than_there_is_is_refused_with_the_bytes() -> None:
    with pytest.raises(Refused, match=r"a replay of .* transitions needs .* bytes of memory"):
        Replay(10**17, OBS, ACTIONS)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be made"):
        Replay(CAPACITY, OBS, ACTIONS, path=tmp_path / "missing" / "transitions")
