"""Power is cut at random moments; what our writes and syncs allow the disk to hold then is opened again."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_sac import codec_byte, replay_journal, replay_ring
from edge_sac.replay import Replay
from edge_sac.replay_disk import ReplayDisk
from edge_sac.replay_journal import SYNC_PERIOD
from edge_sac.replay_row import EMPTY, FIRST, STEP, TERMINATED, TRUNCATED

OBS, ACTIONS = 17, 6
TICK = 0.02
"""[s] Between two transitions."""
PROMISE = 1.0
"""[s] What is older survives."""
CUTS = 200


@dataclass
class Row:
    """What a row of the timeline was written with, and when; a lost one is left EMPTY."""

    kind: int
    obs: NDArray[Any]
    time: float
    action: NDArray[Any] = field(default_factory=lambda: np.zeros(ACTIONS))
    reward: float = 0.0
    lost: bool = False


@dataclass
class Event:
    """A write of `data` at a byte, or a sync's begin or end; when it was, and how many rows were complete."""

    what: str
    time: float
    completed: int
    at: int = 0
    data: bytes = b""


class World:
    """A replay's timeline over its lives, the clock, and all that was done to the disk in this life."""

    def __init__(self, folder: Path, storage: str, capacity: int, seed: int) -> None:
        self.folder, self.storage, self.capacity = folder, storage, capacity
        self.random = random.Random(seed)
        self.time, self.token = 0.0, 0
        self.rows: list[Row] = []
        self.events: list[Event] = []
        self.replay: Replay | None = None

    def log(self, what: str, at: int = 0, data: bytes = b"") -> None:
        self.events.append(Event(what, self.time, len(self.rows), at, data))

    def open(self, image: bytes | None, name: str) -> Replay:
        """Begin a life with what the disk holds, nothing for a new file."""
        path = self.folder / name
        if image is not None:
            path.write_bytes(image)
        self.events = []
        self.replay = Replay(self.capacity, OBS, ACTIONS, self.storage, path)
        return self.replay

    def end(self) -> None:
        """Let go of the file; what that writes is no longer of interest."""
        assert self.replay is not None
        replay, self.replay = self.replay, None
        events = self.events.copy()
        replay.close()
        self.events = events

    def obs(self) -> NDArray[np.float32]:
        """Return an observation unlike any other, now and then far out."""
        self.token += 1
        size = self.random.choice([1, 1, 1, 1, 1, 3, 3, 30]) * (1 + self.token / 5000)
        return np.array([size * self.random.uniform(-1, 1) for _ in range(OBS)], np.float32)

    def add(self) -> None:
        assert self.replay is not None
        self.time += TICK
        fresh = not self.replay.open_episode
        before = self.obs() if fresh else self.rows[-1].obs
        kind = STEP | self.random.choice(10 * [0] + [TERMINATED, TRUNCATED])
        self.token += 1
        action, reward = np.float32(np.sin(np.arange(ACTIONS) * self.token)), float(self.token)
        row = Row(kind, self.obs(), self.time, action, reward)
        ends = bool(kind & TERMINATED), bool(kind & TRUNCATED)
        self.replay.add(before, action, reward, *ends, row.obs, TICK)
        if fresh:
            self.rows.append(Row(FIRST, before, self.time))
        self.rows.append(row)

    def add_while_syncing(self) -> None:
        """A sync of up to 0.2 s, while which the caller goes on."""
        for _ in range(self.random.randint(0, 10)):
            if self.replay is None or self.replay.ring.written + 2 > self.replay.ring.journal.limit:
                break
            self.add()

    def live(self, seconds: float) -> None:
        """Add and commit as the background thread does."""
        assert self.replay is not None
        until, committed = self.time + seconds, self.time
        while self.time < until:
            self.add()
            if self.random.random() < 0.01:
                self.replay.cut()
            if self.time - committed >= SYNC_PERIOD:
                self.replay.sync()
                committed = self.time

    def disk_after_a_cut(self, before: bytes, moment: int, page: int) -> bytes:
        """Return what the disk may hold when power is lost before event `moment`, given what it held before all."""
        disk, begin = bytearray(before), 0
        ended = [i for i in range(moment) if self.events[i].what == "end"]
        if ended:
            begin = max(i for i in range(ended[-1]) if self.events[i].what == "begin")
        for event in self.events[:begin]:
            disk[event.at : event.at + len(event.data)] = event.data
        pending: dict[int, list[tuple[int, bytes]]] = {}
        for event in self.events[begin : moment + 1]:
            at, data = event.at, event.data
            while data:
                room = page - at % page
                pending.setdefault(at // page, []).append((at, data[:room]))
                at, data = at + room, data[room:]
        for states in pending.values():
            whole = self.random.randint(0, len(states))
            for at, data in states[:whole]:
                disk[at : at + len(data)] = data
            if whole < len(states):
                at, data = states[whole]
                torn = data[: self.random.randint(0, len(data))]
                disk[at : at + len(torn)] = torn
        return bytes(disk)

    def check(self, replay: Replay, cut: Event) -> None:
        """Fail unless `replay` holds what it must after a cut at an event; from then on that is the timeline."""
        slots, written = self.capacity + 1, replay.state()["written"]
        # An episode's first two rows may have been under way.
        begun = cut.completed + 2
        safe = sum(row.time < cut.time - PROMISE for row in self.rows[: cut.completed])
        assert safe <= written <= begun
        del self.rows[written:]
        assert replay.state()["added"] == sum(row.kind >= STEP for row in self.rows)
        oldest = max(0, written - slots)
        found = replay.read(oldest, written)
        for number in range(oldest, written):
            i, row = number - oldest, self.rows[number]
            if found.kind[i] == EMPTY:
                assert row.lost or number + slots < begun, f"row {number} of {written} is lost"
                row.lost = True
                continue
            assert not row.lost
            assert found.kind[i] == row.kind
            rounding = self.resolution(replay, number)
            np.testing.assert_array_less(np.abs(found.obs[i] - row.obs), rounding + 2**-11 * np.abs(row.obs))
            if row.kind != FIRST:
                assert found.reward[i] == row.reward
                # Half a step of the coarsest storage of an action.
                assert np.abs(found.action[i] - row.action).max() <= 0.5 / 127 + 1e-6
        assert len(replay) == transitions_in(replay)

    def resolution(self, replay: Replay, number: int) -> Any:
        if self.storage != "u8":
            return 2.0**-24
        table = replay.ring.obs_codec.table
        return 0.501 * table.step[table.generations(np.array([number]))[0]]


def transitions_in(replay: Replay) -> int:
    written = replay.state()["written"]
    kind = replay.read(max(0, written - replay.ring.layout.slots), written).kind
    return int(np.count_nonzero((kind[1:] >= STEP) & (kind[:-1] != EMPTY)))


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that makes a world whose disk is recorded, on the code that is shipped."""
    worlds: list[World] = []

    class Recorder(ReplayDisk):
        def write(self, at: int, data: bytes | bytearray) -> None:
            if self.durable:
                worlds[-1].log("write", at, bytes(data))
            super().write(at, data)

        def sync(self) -> None:
            worlds[-1].log("begin")
            worlds[-1].add_while_syncing()
            worlds[-1].log("end")

    monkeypatch.setattr(replay_ring, "ReplayDisk", Recorder)
    # Commits come by the world's clock.
    monkeypatch.setattr(replay_journal, "SYNC_PERIOD", 3600)
    monkeypatch.setattr(codec_byte, "CALIBRATION_ROWS", 100)

    def make(*args: Any) -> World:
        worlds.append(World(*args))
        return worlds[-1]

    return make


@pytest.mark.parametrize(
    ("storage", "capacity", "page"),
    [
        pytest.param("fp16", 20, 4096, id="a ring of less than the time between commits"),
        pytest.param("fp16", 400, 4096, id="pages"),
        pytest.param("fp16", 150, 512, id="sectors"),
        pytest.param("u8", 300, 4096, id="bytes with ranges"),
    ],
)
def test_after_random_power_cuts_what_is_older_than_a_second_is_whole_and_nothing_is_invented(
    tmp_path: Path, recorded: Any, storage: str, capacity: int, page: int
) -> None:
    world = recorded(tmp_path, storage, capacity, 3 * page + capacity)
    world.open(None, "new").close()
    image = (tmp_path / "new").read_bytes()
    cut = Event("begin", 0.0, 0)
    for life in range(CUTS // 4):
        replay = world.open(image, str(life))
        world.check(replay, cut)
        for event in world.events:  # of recovery, in which the timeline ended already where it was found to end
            event.completed = len(world.rows)
        world.live(world.random.choice([0.1, 0.2, 1.5, 4.0]))
        assert len(replay) == transitions_in(replay)
        world.end()
        last = len(world.events) - 1
        moment = world.random.randint(0, min(6, last) if world.random.random() < 0.2 else last)
        cut = world.events[moment]
        image = world.disk_after_a_cut(image, moment, page)
        world.time += 10.0


def test_what_recovery_wipes_is_on_the_disk_before_a_new_row_can_be(tmp_path: Path, recorded: Any) -> None:
    """Else a later cut brings wiped rows back behind new ones, whole and with the right numbers."""
    world = recorded(tmp_path, "fp16", 60, 0)
    replay = world.open(None, "new")
    for _ in range(5):
        world.add()
    replay.sync()
    index = world.events[-1].completed
    for _ in range(10):
        world.add()
    layout, at = replay.ring.layout, replay.ring._at
    image = bytearray((tmp_path / "new").read_bytes())
    world.end()
    lost = at + (index + 2) * layout.row_bytes
    image[lost : lost + layout.row_bytes] = bytes(layout.row_bytes)
    replay = world.open(bytes(image), "cut")
    assert replay.state()["written"] == index + 2
    wiped = [i for i, event in enumerate(world.events) if event.what == "write" and event.at >= at]
    assert len(wiped) >= 7
    assert any(event.what == "begin" for event in world.events[wiped[-1] :])
    world.end()
