from __future__ import annotations

import errno
import os
import random
import signal
import struct
import subprocess
import sys
import time
import zlib
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from edge_sac import replay, replay_disk, replay_journal, replay_ring, replay_row
from edge_sac.errors import Refused, ReplayError
from edge_sac.replay import Replay
from edge_sac.replay_header import HEADER_BYTES, Index
from edge_sac.replay_row import EMPTY, STEP

OBS, ACTIONS, CAPACITY = 17, 6, 40
ROW = 56
KILLS = 50
KILL_CAPACITY = 500

# For each line of input forks a process that adds transitions for ever, each filled with its own number; a shared word
# counts the completed ones. Forked, as 50 starts of Python would take longer than all else.
WRITER = """
import mmap, os, random, sys
from pathlib import Path
import numpy as np
from edge_sac.replay import Replay

path, ack_path = Path(sys.argv[1]), Path(sys.argv[2])

def obs(number):
    row = np.empty({obs}, dtype=np.float32)
    row[0::2], row[1::2] = number % 1000, number // 1000 % 1000
    return row

def write(seed):
    with ack_path.open("r+b") as file:
        ack = memoryview(mmap.mmap(file.fileno(), 8)).cast("Q")
    replay = Replay({capacity}, {obs}, {actions}, path=path)
    lengths, number = random.Random(seed), replay.state()["added"]
    while True:
        length = lengths.randint(1, 9)
        for i in range(length):
            last = i == length - 1
            action = np.full({actions}, number % 1000, dtype=np.float32)
            replay.add(obs(number), action, number, last and number % 2 == 0, last, obs(number + 1))
            number += 1
            ack[0] = number

for line in sys.stdin:
    child = os.fork()
    if child == 0:
        write(int(line))
    print(child, flush=True)
    os.waitpid(child, 0)
    print("dead", flush=True)
"""


def numbers_in(replay: Replay) -> list[int]:
    """Return the numbers of the transitions held, in order; fails if any part of one belongs to another."""
    written = replay.state()["written"]
    rows = replay.read(max(0, written - replay.ring.layout.slots), written)
    ends = np.flatnonzero((rows.kind[1:] >= STEP) & (rows.kind[:-1] != EMPTY)) + 1
    number = rows.reward[ends].astype(np.int64)
    for values, of in ((rows.obs[ends - 1], number), (rows.obs[ends], number + 1)):
        np.testing.assert_array_equal(values[:, 0::2], np.repeat((of % 1000)[:, None], 9, axis=1))
        np.testing.assert_array_equal(values[:, 1::2], np.repeat((of // 1000 % 1000)[:, None], 8, axis=1))
    np.testing.assert_array_equal(rows.action[ends], np.repeat((number % 1000)[:, None], ACTIONS, axis=1))
    assert len(replay) == len(number)
    return number.tolist()


def test_sigkill_at_random_moments_loses_at_most_the_transition_being_written(tmp_path: Path) -> None:
    path, ack_path = tmp_path / "transitions", tmp_path / "ack"
    ack_path.write_bytes(bytes(8))
    script = WRITER.format(capacity=KILL_CAPACITY, obs=OBS, actions=ACTIONS)
    moments = random.Random(5)
    nursery = subprocess.Popen(
        [sys.executable, "-c", script, str(path), str(ack_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # which leaves one thread to fork from
    )
    assert nursery.stdin is not None
    assert nursery.stdout is not None
    with nursery, closing(nursery.stdin) as orders:
        for seed in range(KILLS):
            before = int.from_bytes(ack_path.read_bytes(), "little")
            # In one of ten while the file is being opened.
            wanted = before + moments.choice([0, *9 * [moments.randint(1, 2000)]])
            print(seed, file=orders, flush=True)
            child = int(nursery.stdout.readline())
            deadline = time.monotonic() + 60
            while int.from_bytes(ack_path.read_bytes(), "little") < wanted:
                assert time.monotonic() < deadline, "the writer added too little for 60 s"
            os.kill(child, signal.SIGKILL)
            assert nursery.stdout.readline() == "dead\n"
            acknowledged = int.from_bytes(ack_path.read_bytes(), "little")
            if not path.exists():
                continue
            with closing(Replay(KILL_CAPACITY, OBS, ACTIONS, path=path)) as replay:
                held = numbers_in(replay)
                added = replay.state()["added"]
                assert added - acknowledged in (0, 1)
                # Held without a gap up to the newest; episode ends take at most half of the slots.
                assert held == list(range(added - len(replay), added))
                assert len(held) >= min(added, KILL_CAPACITY // 2 - 2)
            ack_path.write_bytes(added.to_bytes(8, "little"))
    assert added > 10_000


def add_number(replay: Replay, number: int, terminated: bool, truncated: bool) -> None:
    def obs(of: int) -> np.ndarray[Any, Any]:
        row = np.empty(OBS, dtype=np.float32)
        row[0::2], row[1::2] = of % 1000, of // 1000 % 1000
        return row

    replay.add(obs(number), np.full(ACTIONS, number % 1000), number, terminated, truncated, obs(number + 1))


@pytest.mark.parametrize("capacity", [1, 2, 5])
def test_a_death_before_any_line_of_add_leaves_a_whole_replay(tmp_path: Path, capacity: int) -> None:
    """Copies the file before each line that may write runs: what a SIGKILL there would leave."""
    path, copy = tmp_path / "transitions", tmp_path / "copy"
    files = [module.__file__ for module in (replay, replay_disk, replay_journal, replay_ring, replay_row)]
    images: list[tuple[int, bytes]] = []
    number = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        if event == "line" and (not images or images[-1][1] != (image := path.read_bytes())):
            images.append((number, path.read_bytes() if not images else image))
        return trace

    with closing(Replay(capacity, OBS, ACTIONS, path=path)) as opened:
        for length in (1, 3, 2, 1, 1, 4):
            for i in range(length):
                tracer = sys.gettrace()
                sys.settrace(trace)
                try:
                    add_number(opened, number, i == length - 1 and length % 2 == 0, i == length - 1)
                finally:
                    sys.settrace(tracer)
                number += 1
    assert len(images) >= number
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
        drawn = replay.sampler(32, gamma=0.99).draw(np.random.default_rng(2)).reward
    with closing(Replay(CAPACITY, OBS, ACTIONS, path=path)) as replay:
        assert replay.state() == state
        assert numbers_in(replay) == held
        again = replay.sampler(32, gamma=0.99).draw(np.random.default_rng(2)).reward
        np.testing.assert_array_equal(again, drawn)
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
        pytest.param((41, OBS, ACTIONS, "fp16"), r"capacity 40 \(asked for 41\)", id="capacity"),
        pytest.param((40, 16, ACTIONS, "fp16"), r"observations 17 \(asked for 16\)", id="observations"),
        pytest.param((40, OBS, 7, "fp16"), r"actions 6 \(asked for 7\)", id="actions"),
        pytest.param((40, OBS, ACTIONS, "fp32"), r"storage fp16 \(asked for fp32\)", id="storage"),
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
        pytest.param(600, b"\x07", "both records of the index are damaged", id="index"),
    ],
)
def test_a_damaged_header_is_refused(tmp_path: Path, offset: int, value: bytes, message: str) -> None:
    path = tmp_path / "transitions"
    Replay(CAPACITY, OBS, ACTIONS, path=path).close()
    if offset == 600:
        offset, value = 512, bytes(1024)
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(value)
    with pytest.raises(Refused, match=message):
        Replay(CAPACITY, OBS, ACTIONS, path=path)


@pytest.mark.parametrize("record", [512, 1024])
def test_one_record_of_the_index_is_enough(tmp_path: Path, record: int) -> None:
    path = tmp_path / "transitions"
    with closing(Replay(CAPACITY, OBS, ACTIONS, path=path)) as replay:
        for number in range(3):
            add_number(replay, number, False, False)
            replay.sync()
    with path.open("r+b") as file:
        file.seek(record)
        file.write(bytes(28))
    with closing(Replay(CAPACITY, OBS, ACTIONS, path=path)) as replay:
        assert numbers_in(replay) == [0, 1, 2]


def test_an_index_that_cannot_be_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "transitions"
    Replay(CAPACITY, OBS, ACTIONS, path=path).close()
    index = Index(turn=1, written=2, added=3)
    with path.open("r+b") as file:
        file.seek(index.at)
        file.write(index.pack())
    with pytest.raises(Refused, match="2 rows and 3 transitions: no run can leave that"):
        Replay(CAPACITY, OBS, ACTIONS, path=path)


def test_a_file_of_an_earlier_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "transitions"
    shape = struct.pack("<8s6IQ", b"ESACRPLY", 1, 2, OBS, ACTIONS, 52, 0, CAPACITY)
    path.write_bytes((shape + struct.pack("<I", zlib.crc32(shape))).ljust(HEADER_BYTES + 41 * 52, b"\0"))
    with pytest.raises(Refused, match=r"schema 1.*reads schema 2: start a new run"):
        Replay(CAPACITY, OBS, ACTIONS, path=path)


@pytest.mark.parametrize("byte", [0, 4, 37, 38, 49, 50, 51, 52, 55])
def test_a_row_with_one_wrong_bit_is_dropped_and_no_other(tmp_path: Path, byte: int) -> None:
    path = tmp_path / "transitions"
    with closing(Replay(CAPACITY, OBS, ACTIONS, path=path)) as replay:
        for number in range(60):
            add_number(replay, number, False, False)
        ranked = replay.sampler(4000, gamma=0.99, prioritized=True)
        ranked.draw(np.random.default_rng(0))
        state = ranked.state()
    data = bytearray(path.read_bytes())
    # Row 41 k + 7 of this unbroken episode ends transition 41 k + 6 and begins the next one.
    data[HEADER_BYTES + 7 * ROW + byte] ^= 4
    path.write_bytes(data)
    with closing(Replay(CAPACITY, OBS, ACTIONS, path=path)) as replay:
        assert numbers_in(replay) == [n for n in range(20, 60) if n not in (47, 48)]
        drawn = replay.sampler(4000, gamma=0.99).draw(np.random.default_rng(0))
        assert set(drawn.reward.tolist()) == set(numbers_in(replay))
        ranked = replay.sampler(4000, gamma=0.99, prioritized=True)
        assert set(ranked.draw(np.random.default_rng(0)).reward.tolist()) == set(numbers_in(replay))
        ranked.restore(*state)
        assert set(ranked.draw(np.random.default_rng(0)).reward.tolist()) == set(numbers_in(replay))


@pytest.mark.parametrize("size", [0, 5, HEADER_BYTES, HEADER_BYTES + 41 * ROW - 1, HEADER_BYTES + 41 * ROW + 1])
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
    with pytest.raises(Refused, match=r"40 transitions \(56 bytes each\) needs 6392 bytes on disk, \d+ are free"):
        Replay(CAPACITY, OBS, ACTIONS, path=tmp_path / "transitions")
    assert list(tmp_path.iterdir()) == []


def test_the_disk_space_is_reserved_at_start(tmp_path: Path) -> None:
    path = tmp_path / "transitions"
    with closing(Replay(100_000, OBS, ACTIONS, path=path)):
        status = path.stat()
    assert status.st_blocks * 512 >= status.st_size == HEADER_BYTES + 100_001 * ROW


def test_more_memory_than_there_is_is_refused_with_the_bytes() -> None:
    with pytest.raises(Refused, match=r"a replay of .* transitions .* needs .* bytes of memory"):
        Replay(10**17, OBS, ACTIONS)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="cannot be made"):
        Replay(CAPACITY, OBS, ACTIONS, path=tmp_path / "missing" / "transitions")
