from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="checkpoints hold tensors: pip install 'edge-sac[train]'")

from edge_sac import checkpoint as checkpoint_module  # noqa: E402
from edge_sac.checkpoint import checkpoint_steps, load_checkpoint, save_checkpoint  # noqa: E402
from edge_sac.errors import CheckpointError  # noqa: E402


def tensors_of(step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    return {
        "critic.flat": torch.randn(300, generator=generator).half(),
        "critic.compensation": torch.randn(7, 3, generator=generator, dtype=torch.float64),
        "step": torch.tensor(step),
    }


def state_of(step: int) -> dict[str, Any]:
    return {
        "episode": step // 10,
        "replay": {"written": step, "added": step},
        "rng": 2**127 + step,
        "lr": 0.1,
    }


def save(run: Path, step: int, keep: int = 3) -> Path:
    return save_checkpoint(run, step, tensors_of(step), state_of(step), keep)


def assert_whole(run: Path, step: int | None = None) -> int:
    """Return the step of the checkpoint loaded, having compared every byte of it."""
    found, tensors, state = load_checkpoint(run, step)
    expected = tensors_of(found)
    assert state == state_of(found)
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        assert tensor.dtype == expected[name].dtype
        assert torch.equal(tensor, expected[name])
    return found


def test_what_was_saved_is_loaded_bit_for_bit(tmp_path: Path) -> None:
    save(tmp_path, 0)
    save(tmp_path, 20)
    assert assert_whole(tmp_path) == 20
    assert assert_whole(tmp_path, 0) == 0


def test_the_newest_of_steps_is_newest_by_number(tmp_path: Path) -> None:
    for step in (9, 100, 20):
        save(tmp_path, step)
    assert checkpoint_steps(tmp_path) == [9, 20, 100]
    assert assert_whole(tmp_path) == 100


def test_only_the_last_ones_are_kept(tmp_path: Path) -> None:
    for step in range(5):
        save(tmp_path, step, keep=2)
    assert checkpoint_steps(tmp_path) == [3, 4]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["3", "4"]


def test_a_step_can_be_saved_again(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 5, {}, {"old": 1})
    save(tmp_path, 5)
    assert assert_whole(tmp_path) == 5
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["5"]


def test_what_a_crash_left_is_removed_at_the_next_save(tmp_path: Path) -> None:
    save(tmp_path, 1)
    for name in (".new-2", ".new-3", ".old-1"):
        stale = tmp_path / "checkpoints" / name
        stale.mkdir()
        (stale / "tensors.safetensors").write_bytes(b"half")
    assert assert_whole(tmp_path) == 1
    save(tmp_path, 3)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["1", "3"]


def short_write(real: Callable[[int, Any], int]) -> Callable[[int, Any], int]:
    return lambda file, content: real(file, bytes(content)[: max(1, len(content) // 2)])


@pytest.mark.parametrize("step", [pytest.param(3, id="a new step"), pytest.param(2, id="the same step again")])
def test_a_death_before_any_line_of_saving_leaves_a_loadable_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Copies the folder before each line, also of halved writes and removals: what a SIGKILL would leave."""
    run = tmp_path / "run"
    run.mkdir()
    save(run, 1, keep=2)
    save(run, 2, keep=2)
    monkeypatch.setattr(os, "write", short_write(os.write))
    images: list[Path] = []
    listings: list[Any] = []
    traced = (checkpoint_module.__file__, shutil.__file__)

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in traced:
            return None
        if event == "line":
            sys.settrace(None)
            listing = [(str(path), path.is_file() and path.stat().st_size) for path in sorted(run.rglob("*"))]
            if not listings or listings[-1] != listing:
                listings.append(listing)
                images.append(tmp_path / f"image{len(images)}")
                shutil.copytree(run, images[-1])
            sys.settrace(trace)
        return trace

    tracer = sys.gettrace()
    sys.settrace(trace)
    try:
        save(run, step, keep=2)
    finally:
        sys.settrace(tracer)
    # Two folders made, files begun and written by halves, renames, files and folders removed.
    assert len(images) > 20
    newest = [assert_whole(image) for image in images]
    assert newest == sorted(newest)
    assert set(newest) <= {2, step}
    for image in images:
        for older in checkpoint_steps(image):
            assert_whole(image, older)
        save(image, 9, keep=2)
        assert assert_whole(image) == 9
        assert all(path.name.isdigit() for path in (image / "checkpoints").iterdir())


WRITER = """
import sys
from pathlib import Path
import torch
from edge_sac.checkpoint import save_checkpoint
run, step = Path(sys.argv[1]), 0
while True:
    step += 1
    save_checkpoint(run, step, {"w": torch.full((20_000,), step)}, {"step": step}, keep=2)
"""


def test_sigkill_while_saving_leaves_a_loadable_checkpoint(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)])
    try:
        deadline = time.monotonic() + 60
        while max(checkpoint_steps(tmp_path), default=0) < 10:
            assert child.poll() is None, "the writer ended by itself"
            assert time.monotonic() < deadline, "the writer saved nothing for 60 s"
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait(timeout=30)
    step, tensors, state = load_checkpoint(tmp_path)
    assert step >= 10
    assert state == {"step": step}
    assert torch.equal(tensors["w"], torch.full((20_000,), step))


def test_everything_is_on_the_disk_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []
    fsync, rename = os.fsync, Path.rename

    def noted_fsync(file: int) -> None:
        fsync(file)
        events.append(f"sync {Path(f'/proc/self/fd/{file}').readlink().name}")

    def noted_rename(path: Path, target: Path) -> Path:
        events.append(f"rename {path.name} {target.name}")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "rename", noted_rename)
    save(tmp_path, 4)
    assert events == [
        f"sync {tmp_path.name}",
        "sync tensors.safetensors",
        "sync checkpoint.json",
        "sync .new-4",
        "rename .new-4 4",
        "sync checkpoints",
    ]


def test_a_full_disk_leaves_the_old_ones_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2)

    def full(file: int, content: Any) -> int:
        if len(content) < 500:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, bytes(content)[:500])

    with monkeypatch.context() as patch:
        write = os.write
        patch.setattr(os, "write", full)
        message = r"step 3 cannot be written to .*: No space left on device \(\d+ bytes needed, \d+ free\); the "
        with pytest.raises(CheckpointError, match=message + "checkpoints of step 1, 2 are untouched"):
            save(tmp_path, 3)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["1", "2"]
    assert assert_whole(tmp_path) == 2
    save(tmp_path, 3)
    assert assert_whole(tmp_path) == 3


def test_a_missing_run_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="No such file or directory"):
        save(tmp_path / "missing", 1)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip_last_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def other_schema(path: Path) -> None:
    path.write_text(path.read_text().replace('"schema": 1', '"schema": 9'))


def other_episode(path: Path) -> None:
    path.write_text(path.read_text().replace('"episode": 2', '"episode": 3'))


def a_list(path: Path) -> None:
    path.write_text("[]")


def not_a_number(path: Path) -> None:
    path.write_text(path.read_text().replace("0.1", "NaN"))


def nested(path: Path) -> None:
    path.write_text("[" * 100_000)


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        pytest.param("tensors.safetensors", cut_short, "truncated", id="tensors cut short"),
        pytest.param("tensors.safetensors", flip_last_bit, "was changed", id="tensors bit flipped"),
        pytest.param("tensors.safetensors", Path.unlink, "is missing", id="tensors missing"),
        pytest.param("checkpoint.json", cut_short, "is not JSON", id="state cut short"),
        pytest.param("checkpoint.json", flip_last_bit, "is not JSON", id="state bit flipped"),
        pytest.param("checkpoint.json", Path.unlink, "is missing", id="state missing"),
        pytest.param("checkpoint.json", other_schema, "has schema 9; this version reads 1", id="schema"),
        pytest.param("checkpoint.json", other_episode, "was changed", id="state tampered with"),
        pytest.param("checkpoint.json", a_list, "expected a JSON object", id="another JSON type"),
        pytest.param("checkpoint.json", not_a_number, "NaN is not JSON", id="NaN"),
        pytest.param("checkpoint.json", nested, "is not JSON", id="nested without end"),
    ],
)
def test_damage_is_named_with_file_and_remedy(
    tmp_path: Path, name: str, damage: Callable[[Path], None], message: str
) -> None:
    save(tmp_path, 10)
    save(tmp_path, 20)
    folder = tmp_path / "checkpoints" / "20"
    damage(folder / name)
    with pytest.raises(CheckpointError) as refused:
        load_checkpoint(tmp_path)
    text = str(refused.value)
    assert text.startswith(str(folder / name))
    assert message in text
    assert text.endswith(f"delete {folder} to continue from step 10")
    shutil.rmtree(folder)
    assert assert_whole(tmp_path) == 10


def test_the_remedy_names_only_a_whole_checkpoint(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    root = tmp_path / "checkpoints"
    flip_last_bit(root / "3" / "tensors.safetensors")
    cut_short(root / "2" / "checkpoint.json")
    with pytest.raises(CheckpointError, match=r"2 and .*3 to continue from step 1"):
        load_checkpoint(tmp_path)
    (root / "1" / "checkpoint.json").unlink()
    with pytest.raises(CheckpointError, match="no older checkpoint is whole"):
        load_checkpoint(tmp_path)


def test_a_folder_renamed_to_another_step_is_refused(tmp_path: Path) -> None:
    save(tmp_path, 1).rename(tmp_path / "checkpoints" / "7")
    with pytest.raises(CheckpointError, match="is of step 1, but its folder says 7"):
        load_checkpoint(tmp_path)


def test_a_seal_made_by_somebody_else_over_other_tensors_still_fails(tmp_path: Path) -> None:
    path = save(tmp_path, 1) / "tensors.safetensors"
    record = json.loads((path.parent / "checkpoint.json").read_text())
    path.write_bytes(b"x" * record["tensors"]["bytes"])
    record["tensors"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    del record["sha256"]
    (path.parent / "checkpoint.json").write_bytes(checkpoint_module._sealed(record))
    with pytest.raises(CheckpointError, match="holds no tensors"):
        load_checkpoint(tmp_path)


def test_no_checkpoint_and_no_such_step_are_refused(tmp_path: Path) -> None:
    assert checkpoint_steps(tmp_path) == []
    with pytest.raises(CheckpointError, match="holds no checkpoint: start a new run"):
        load_checkpoint(tmp_path)
    save(tmp_path, 4)
    with pytest.raises(CheckpointError, match="no checkpoint of step 3, only of step 4"):
        load_checkpoint(tmp_path, 3)


@pytest.mark.parametrize(
    ("tensors", "state", "error"),
    [
        pytest.param({}, {"best": float("inf")}, ValueError, id="infinity in the state"),
        pytest.param({}, {"path": Path("x")}, TypeError, id="no JSON type"),
        pytest.param({"a": torch.ones(4), "b": None}, {}, AttributeError, id="no tensor"),
    ],
)
def test_what_the_files_cannot_hold_is_an_error_before_anything_is_written(
    tmp_path: Path, tensors: dict[str, Any], state: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        save_checkpoint(tmp_path, 1, tensors, state)
    assert list(tmp_path.iterdir()) == []


def test_views_of_one_flat_buffer_are_refused_rather_than_saved_twice(tmp_path: Path) -> None:
    flat = torch.ones(8)
    with pytest.raises(RuntimeError, match="share memory"):
        save_checkpoint(tmp_path, 1, {"flat": flat, "weight": flat[:4]}, {})
