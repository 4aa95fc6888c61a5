"""A run's folder is made whole or not at all, and never in place of something else."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from edge_sac.config import Config
from edge_sac.contract import ActionChannel, Contract, ObservationChannel
from edge_sac.errors import ConfigError, Refused
from edge_sac.run_folder import CONFIG, START, Start, free_name, is_run, new_folder, read_run, refuse_occupied

CONTRACT = Contract(
    robot="Some/Env-v0",
    kind="gym",
    observation=(ObservationChannel(name="x", unit="1", mean=0.25, scale=0.1),),
    action=(ActionChannel(name="u", unit="1", lower=-0.1, upper=0.3),),
)
BEGUN = Start(contract=CONTRACT, compute="float32", reason="measured")
SETTINGS = Config(env="Some/Env-v0", seed=3)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_was_written_at_the_start_is_read_back_equal(tmp_path: Path) -> None:
    with new_folder(tmp_path / "deep" / "run", SETTINGS, BEGUN):
        pass
    assert read_run(tmp_path / "deep" / "run") == (SETTINGS, BEGUN)


def test_names_are_the_plain_one_and_then_the_next_free_number(tmp_path: Path) -> None:
    assert free_name(tmp_path, "od/d") == tmp_path / "od-d"
    for name in ("od-d", "od-d-2", "od-d-4"):
        (tmp_path / name).mkdir()
    assert free_name(tmp_path, "od/d") == tmp_path / "od-d-3"


@pytest.mark.parametrize("there", [True, False])
def test_a_run_that_fails_while_it_is_made_leaves_everything_as_it_was(tmp_path: Path, there: bool) -> None:
    run = tmp_path / "runs" / "new"
    if there:
        run.mkdir(parents=True)

    def fail() -> None:
        with new_folder(run, SETTINGS, BEGUN):
            (run / "replay").mkdir()
            (run / "replay" / "map").write_bytes(b"0")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert list(tmp_path.rglob("*")) == ([run.parent, run] if there else [])


def test_what_a_kill_left_of_a_run_that_was_never_begun_is_nothing(tmp_path: Path) -> None:
    for name in (START, f".{START}.77.new", f".{CONFIG}.77.new"):
        (tmp_path / name).write_text("half", encoding="utf-8")
    refuse_occupied(tmp_path)
    assert not is_run(tmp_path)
    with new_folder(tmp_path, SETTINGS, BEGUN):
        assert sorted(contents(tmp_path)) == [CONFIG, START]


@pytest.mark.parametrize(
    ("name", "words"),
    [(CONFIG, "holds a run"), ("notes.txt", "not an empty folder"), ("checkpoints/1", "not an empty")],
)
def test_a_folder_that_holds_anything_is_refused_and_left_as_it_is(tmp_path: Path, name: str, words: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine", encoding="utf-8")
    before = contents(tmp_path)
    with pytest.raises(Refused, match=words), new_folder(tmp_path, SETTINGS, BEGUN):
        pytest.fail("entered")
    assert contents(tmp_path) == before


def test_a_file_or_a_name_that_cannot_be_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    for run in (tmp_path / "file", tmp_path / "file" / "run", tmp_path / ("x" * 300)):
        with pytest.raises(Refused, match=r"--out|another path"), new_folder(run, SETTINGS, BEGUN):
            pytest.fail("entered")
    with pytest.raises(Refused, match="too long"):
        free_name(tmp_path, "x" * 300)
    assert contents(tmp_path) == {"file": b"mine"}


def test_a_run_that_another_process_is_making_is_refused_and_left_to_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    lock = os.open(run, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(Refused, match="another process"), new_folder(run, SETTINGS, BEGUN):
            pytest.fail("entered")
        assert run.is_dir()
    finally:
        os.close(lock)


def test_a_folder_without_a_run_and_a_damaged_start_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="not a run folder"):
        read_run(tmp_path / "none")
    with new_folder(tmp_path / "run", SETTINGS, BEGUN):
        pass
    start = tmp_path / "run" / START
    whole = start.read_bytes()
    for damaged in (whole[:-10], b"\xff", b"{}", whole.replace(b'"gym"', b'"car"'), whole.replace(b"0.3", b"-0.3")):
        start.write_bytes(damaged)
        with pytest.raises(ConfigError, match=r"start\.json is damaged"):
            read_run(tmp_path / "run")
