"""Commits come by themselves, failures of the disk reach the caller, and nothing waits for ever."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from edge_sac import replay_journal
from edge_sac.errors import ReplayError
from edge_sac.replay import Replay
from edge_sac.replay_header import HEADER_BYTES, newest_index


def add(replay: Replay, number: int) -> None:
    replay.add([number], [0], number, True, False, [number])


def on_disk(path: Path) -> int:
    """Return how many transitions the index counts."""
    return newest_index(path.read_bytes()[:HEADER_BYTES], path).added


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_journal, "SYNC_PERIOD", 0.001)


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_journal, "SYNC_PERIOD", 3600)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)


def wait(deadline: float = 30.0) -> Iterator[None]:
    """Yield until the deadline, then fail."""
    until = time.monotonic() + deadline
    while time.monotonic() < until:
        yield
    raise AssertionError(f"nothing came of it within {deadline} s")


@pytest.mark.usefixtures("often")
def test_what_was_added_is_committed_without_a_call(tmp_path: Path) -> None:
    with closing(Replay(50, 1, 1, path=tmp_path / "map")) as replay:
        for number in range(7):
            add(replay, number)
        for _ in wait():
            if on_disk(tmp_path / "map") == 7:
                break


@pytest.mark.usefixtures("never")
def test_a_sync_and_a_close_commit_at_once(tmp_path: Path) -> None:
    with closing(Replay(50, 1, 1, path=tmp_path / "map")) as replay:
        add(replay, 0)
        assert on_disk(tmp_path / "map") == 0
        replay.sync()
        assert on_disk(tmp_path / "map") == 1
        add(replay, 1)
    assert on_disk(tmp_path / "map") == 2


@pytest.mark.usefixtures("never")
def test_a_ring_is_never_a_whole_lap_ahead_of_its_index(tmp_path: Path) -> None:
    """Else the row after the last counted one, where recovery begins, is gone."""
    with closing(Replay(5, 1, 1, path=tmp_path / "map")) as replay:
        for number in range(40):
            add(replay, number)
            assert replay.ring.written - newest_index((tmp_path / "map").read_bytes()[:HEADER_BYTES], None).written <= 6


@pytest.mark.usefixtures("never", "failing")
def test_a_disk_that_fails_is_told_once_at_each_call_and_close_is_clean_then(tmp_path: Path) -> None:
    replay = Replay(50, 1, 1, path=tmp_path / "map")
    add(replay, 0)
    for use in (replay.sync, replay.sync, lambda: add(replay, 1)):
        with pytest.raises(ReplayError, match=r"map: the disk failed to sync .*Input/output error.*then resume"):
            use()
    replay.close()
    replay.close()


@pytest.mark.usefixtures("often", "failing")
def test_a_failure_in_the_background_is_raised_by_the_next_call(tmp_path: Path) -> None:
    replay = Replay(50, 1, 1, path=tmp_path / "map")
    add(replay, 0)
    for _ in wait():
        if replay.ring.journal.failure is not None:
            break
    with pytest.raises(ReplayError, match="the disk failed to sync"):
        add(replay, 1)
    replay.close()


@pytest.mark.usefixtures("often", "failing")
def test_a_failure_in_the_background_is_raised_by_close_when_nothing_came_between(tmp_path: Path) -> None:
    replay = Replay(50, 1, 1, path=tmp_path / "map")
    add(replay, 0)
    for _ in wait():
        if replay.ring.journal.failure is not None:
            break
    with pytest.raises(ReplayError, match="the disk failed to sync"):
        replay.close()


@pytest.mark.usefixtures("often")
def test_closing_gives_up_on_a_sync_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, ended = threading.Event(), threading.Event()

    def hang(_: int) -> None:
        begun.set()
        ended.wait(60)

    monkeypatch.setattr(os, "fdatasync", hang)
    monkeypatch.setattr(replay_journal, "CLOSE_DEADLINE", 0.01)
    replay = Replay(50, 1, 1, path=tmp_path / "map")
    add(replay, 0)
    assert begun.wait(30)
    with pytest.raises(ReplayError, match=r"has not come to its end for 0\.01 s"):
        replay.close()
    ended.set()
    replay.ring.journal._thread.join(30)
    assert not replay.ring.journal._thread.is_alive()
