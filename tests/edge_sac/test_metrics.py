from __future__ import annotations

import errno
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_sac.errors import MissingExtra, Refused
from edge_sac.metrics import KINDS, NAMES, MetricsLog, read_metrics


def test_what_was_written_is_read_with_nan_where_a_record_says_nothing(tmp_path: Path) -> None:
    with closing(MetricsLog(tmp_path, tensorboard=False)) as log:
        log.write("train", {"step": 10, "alpha": 0.1, "critic_loss": float("inf")})
        log.write("eval", {"step": 10, "return_mean": 1 / 3, "success_rate": float("nan")})
    read = read_metrics(tmp_path)
    assert set(read) == {"step", "kind", *NAMES}
    assert read["step"].tolist() == [10, 10]
    assert read["kind"].tolist() == ["train", "eval"]
    np.testing.assert_array_equal(read["alpha"], [0.1, np.nan])
    np.testing.assert_array_equal(read["critic_loss"], [np.inf, np.nan])
    np.testing.assert_array_equal(read["return_mean"], [np.nan, 1 / 3])
    assert np.isnan(read["success_rate"]).all()


def test_a_log_without_records_reads_as_empty_columns(tmp_path: Path) -> None:
    MetricsLog(tmp_path, tensorboard=False).close()
    assert all(column.shape == (0,) for column in read_metrics(tmp_path).values())


def test_every_record_is_in_the_file_before_write_returns(tmp_path: Path) -> None:
    with closing(MetricsLog(tmp_path, tensorboard=False)) as log:
        for step in range(3):
            log.write("train", {"step": step})
            assert read_metrics(tmp_path)["step"].tolist() == list(range(step + 1))


def test_a_file_cut_anywhere_reads_as_its_whole_lines_and_is_appended_to(tmp_path: Path) -> None:
    with closing(MetricsLog(tmp_path, tensorboard=False)) as log:
        for step in (1, 2):
            log.write("train", {"step": step, "alpha": step / 8})
    path = tmp_path / "metrics.csv"
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    for size in range(len(lines[0]), len(content) + 1):
        path.write_bytes(content[:size])
        whole = [1] * (size >= len(lines[0] + lines[1])) + [2] * (size == len(content))
        assert read_metrics(tmp_path)["step"].tolist() == whole
        with closing(MetricsLog(tmp_path, tensorboard=False)) as log:
            log.write("train", {"step": 3})
        assert read_metrics(tmp_path)["step"].tolist() == [*whole, 3]


def test_a_resumed_run_forgets_what_it_will_write_again(tmp_path: Path) -> None:
    with closing(MetricsLog(tmp_path, tensorboard=False)) as log:
        for step in (10, 20, 30):
            log.write("train", {"step": step, "alpha": 0.1})
    with closing(MetricsLog(tmp_path, tensorboard=False)) as log:
        log.truncate_after(20)
        assert read_metrics(tmp_path)["step"].tolist() == [10, 20]
        log.write("train", {"step": 25, "alpha": 0.2})
    read = read_metrics(tmp_path)
    assert read["step"].tolist() == [10, 20, 25]
    assert read["alpha"].tolist() == [0.1, 0.1, 0.2]


@pytest.mark.parametrize(
    ("kind", "row", "named"),
    [
        ("test", {"step": 1}, "kind 'test'"),
        ("train", {"step": 1, "alfa": 0.1}, r"unknown: \['alfa'\]"),
        ("train", {"alpha": 0.1}, "`step` must be there"),
    ],
)
def test_a_record_outside_the_documented_columns_is_refused(
    tmp_path: Path, kind: str, row: dict[str, float], named: str
) -> None:
    with closing(MetricsLog(tmp_path, tensorboard=False)) as log:
        with pytest.raises(ValueError, match=named):
            log.write(kind, row)
        assert read_metrics(tmp_path)["step"].size == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        pytest.param(b"5,train\n", "line 2 is no record", id="too few columns"),
        pytest.param(b"5,walk" + b"," * len(NAMES) + b"\n", "line 2 is no record", id="kind"),
        pytest.param(b"x,train" + b"," * len(NAMES) + b"\n", "line 2 is no record", id="step"),
        pytest.param(b"5,train,x" + b"," * (len(NAMES) - 1) + b"\n", "line 2 is no record", id="value"),
        pytest.param(b"\xff\x00\n", "line 2 is no record", id="binary"),
    ],
)
def test_a_damaged_line_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    MetricsLog(tmp_path, tensorboard=False).close()
    with (tmp_path / "metrics.csv").open("ab") as file:
        file.write(line)
    with pytest.raises(Refused, match=message):
        read_metrics(tmp_path)


def test_a_file_with_other_columns_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,reward\n1,2\n")
    for use in (lambda: MetricsLog(tmp_path, tensorboard=False), lambda: read_metrics(tmp_path)):
        with pytest.raises(Refused, match="other columns"):
            use()
    assert path.read_text() == "step,reward\n1,2\n"


def test_a_missing_file_or_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="is missing"):
        read_metrics(tmp_path)
    with pytest.raises(Refused, match="cannot be written"):
        MetricsLog(tmp_path / "missing", tensorboard=False)


def test_a_full_disk_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with closing(MetricsLog(tmp_path, tensorboard=False)) as log:
        for write, message in ((full, "No space left on device"), (lambda *_: 3, "3 of .* bytes written")):
            with monkeypatch.context() as patch:
                patch.setattr(os, "write", write)
                with pytest.raises(Refused, match=message):
                    log.write("train", {"step": 1})


def test_tensorboard_holds_the_same_numbers_and_a_resumed_run_purges_them(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    pytest.importorskip("torch")
    with closing(MetricsLog(tmp_path)) as log:
        for step in (10, 20, 30):
            log.write("train", {"step": step, "alpha": step / 64})
        log.write("eval", {"step": 20, "return_mean": 5})
        log.flush()
    with closing(MetricsLog(tmp_path)) as log:
        log.truncate_after(20)
        log.write("train", {"step": 25, "alpha": 0.5})
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["eval/return_mean", "train/alpha"]
    read = [(event.step, event.value) for event in events.Scalars("train/alpha")]
    assert read == [(10, 10 / 64), (20, 20 / 64), (25, 0.5)]


def test_events_that_cannot_be_written_are_refused_by_the_writing_thread(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    with closing(MetricsLog(tmp_path)) as log:
        log.write("train", {"step": 10, "alpha": 1.0})
        assert log._events is not None
        with Path("/dev/full").open("wb", buffering=0) as full, pytest.MonkeyPatch.context() as patch:
            patch.setattr(log._events._records, "_writer", full)
            with pytest.raises(Refused, match="no events can be written: No space left on device; make room"):
                log.write("train", {"step": 20, "alpha": 1.0})


def test_no_tensorflow_is_loaded_even_where_there_is_one(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    pytest.importorskip("torch")
    (tmp_path / "tensorflow.py").write_text("raise SystemError('TensorFlow was loaded')\n")
    script = (
        "import sys; from pathlib import Path; from edge_sac.metrics import MetricsLog\n"
        "assert 'torch' not in sys.modules\n"
        "log = MetricsLog(Path(sys.argv[1])); log.write('train', {'step': 1, 'alpha': 0.1}); log.close()\n"
        "assert 'tensorflow' not in sys.modules\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    child = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    assert read_metrics(tmp_path)["alpha"].tolist() == [0.1]


def test_a_missing_tensorboard_is_named_with_what_installs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    with (
        closing(MetricsLog(tmp_path)) as log,
        pytest.raises(MissingExtra, match=r"pip install 'edge-sac\[train\]'"),
    ):
        log.write("train", {"step": 1})


def test_the_columns_are_documented_once_each() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert KINDS == ("train", "eval", "episode")
