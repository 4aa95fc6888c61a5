"""Acting, the replay and environments are measured as they are used."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from rich.console import Console

from edge_sac.commands.bench.act import bench_act
from edge_sac.commands.bench.acting import KINDS, numpy_policy, random_weights
from edge_sac.commands.bench.candidate import Work
from edge_sac.commands.bench.env import bench_env
from edge_sac.commands.bench.report import Report, number
from edge_sac.commands.bench.rounds import Pace
from edge_sac.errors import Refused
from edge_sac.policy_reference import reference_action
from edge_sac.storage import STORAGES

QUICK = Pace(2, 0.02, patience=0.0)


def test_numpy_beside_our_policies_computes_the_same_actions():
    work = Work(hidden=(16, 16))
    weights = random_weights(work)
    obs = np.random.default_rng(0).standard_normal((50, work.obs)).astype(np.float32)
    expected = reference_action(weights, obs, np.zeros((50, work.action)))
    act = numpy_policy(weights)
    # float32 against float64 over three layers of at most 17 terms: a few units of 2^-24 each.
    np.testing.assert_allclose([act(one) for one in obs], expected, rtol=0, atol=2e-6)


def test_acting_is_timed_and_weighed_in_processes_of_its_own(tmp_path):
    output = tmp_path / "act.json"
    console = Console(record=True, width=160)
    assert bench_act(16, QUICK, False, None, output, console) == 0
    record = json.loads(output.read_text())
    assert [row["name"] for row in record["rows"]] == list(KINDS)
    for row in record["rows"]:
        assert 0 < row["p50_s"] <= row["p99_s"]
    live, exported, plain = record["rows"]
    assert plain["resident_bytes"] < min(live["resident_bytes"], exported["resident_bytes"])
    alone = record["settings"]["resident_alone_bytes"]
    assert plain["resident_bytes"] < alone < exported["resident_bytes"] + 2**20
    assert f"{alone / 1e6:.1f} MB" in console.export_text()


def test_replay_is_measured_by_storage_from_the_command_line(tmp_path, monkeypatch, capsys):
    from edge_sac.cli import main

    output = tmp_path / "replay.json"
    monkeypatch.setattr("edge_sac.commands.bench.rounds.Pace.__init__.__defaults__", (2, 0.02, None, 0.0))
    arguments = [
        "--rounds",
        "1",
        "--seconds",
        "0.02",
        "--transitions",
        "300",
        "--batch",
        "8",
        "--storage",
        ",".join(STORAGES),
        "--json",
        str(output),
    ]
    monkeypatch.setattr(sys, "argv", ["edge-sac", "bench", "replay", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    record = json.loads(output.read_text())
    assert record["command"] == " ".join(["edge-sac bench replay", *arguments])
    sizes = {row["name"]: row["bytes_per_transition"] for row in record["rows"]}
    assert list(sizes) == list(STORAGES)
    assert sizes["u8"] < sizes["fp16"] < sizes["fp32"]
    assert sizes["fp16"] <= 56
    for row in record["rows"]:
        assert row["inserts_per_s"] > 0
        assert 0 < row["batch_p50_s"] <= row["batch_p99_s"]
    assert "bytes per transition" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["replay", "--storage", "fp64"], id="unknown storage"),
        pytest.param(["act", "--width", "0"], id="no width"),
        pytest.param(["env", "--env", "NoSuch-v0", "--rounds", "1"], id="unknown environment"),
        pytest.param(["everything"], id="unknown benchmark"),
        pytest.param(["replay", "--json", "/nowhere/at/all.json"], id="nowhere to write"),
    ],
)
def test_what_cannot_be_measured_ends_with_one_line(arguments, monkeypatch, capsys):
    from edge_sac.cli import main

    monkeypatch.setattr(sys, "argv", ["edge-sac", "bench", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code in (2, 3)
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_counts_are_whole_numbers_above_zero():
    from edge_sac.commands.bench.command_line import _counts

    assert _counts("64,256", "--width") == (64, 256)
    for wrong in ("", "64,", "0", "-1", "2.5"):
        with pytest.raises(Refused, match="--width"):
            _counts(wrong, "--width")


def test_twins_are_slower_than_their_bare_physics(tmp_path):
    output = tmp_path / "env.json"
    assert bench_env(None, QUICK, output, Console(record=True, width=160)) == 0
    record = json.loads(output.read_text())
    rows = {row["name"]: row for row in record["rows"]}
    assert "equations" in rows
    assert ("pybullet" in rows) != ("furuta on pybullet" in record["missing"])
    for name in rows:
        if not name.startswith("bare "):
            assert 0.02 < rows[name]["of_bare"] < 1


def test_any_environment_can_be_stepped(tmp_path):
    output = tmp_path / "env.json"
    assert bench_env("Pendulum-v1", QUICK, output, Console(record=True, width=160)) == 0
    (row,) = json.loads(output.read_text())["rows"]
    assert row["name"] == "Pendulum-v1"
    assert row["of_bare"] is None


def test_record_is_whole_and_traceable():
    record = json.loads(json.dumps(Report("act", {"width": 8}).record()))
    assert set(record) >= {"benchmark", "command", "version", "commit", "machine", "versions", "settings", "rows"}
    assert record["machine"]["processor"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (0, "0"), (0.123456, "0.123"), (1, "1.00"), (12.345, "12.3"), (1234.5, "1,234"), (6e-5, "0.0000600")],
)
def test_numbers_have_three_digits_and_no_exponent(value, text):
    assert number(value) == text
