"""What `edge-sac bench update` prints is what it measured, beside the floor and whoever is installed."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec

import pytest
from rich.console import Console

from edge_sac.commands.bench import update
from edge_sac.commands.bench.peers import PEERS, module
from edge_sac.commands.bench.report import number
from edge_sac.commands.bench.update import UpdateSettings, bench_update
from edge_sac.errors import ConfigError, Refused

TINY = {"widths": (8,), "batch": 16, "rounds": 2, "seconds": 0.02, "transitions": 64, "devices": ("cpu",)}
HEAD = "import os\nfrom edge_sac.commands.bench.candidate import Candidate\ndef build(work):\n    "
FAKES = {
    "Brisk": "return Candidate({'update': lambda: sum(range(1000))})",
    "Mortal": "return Candidate({'update': lambda: os._exit(9)})",
    "Absent": "import no_such_library",
}


@pytest.fixture
def peers(tmp_path, monkeypatch):
    """Put other candidates in the place of the peers, which may or may not be installed."""
    for name, body in FAKES.items():
        (tmp_path / f"fake_{name}.py").write_text(HEAD + body)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    for where in ("crew", "update"):
        monkeypatch.setattr(f"edge_sac.commands.bench.{where}.PEERS", FAKES)
    monkeypatch.setattr("edge_sac.commands.bench.crew.module", "fake_{}".format)


@pytest.fixture
def quick(monkeypatch):
    """Wait for nobody: these tests need no clean rounds."""
    monkeypatch.setattr(UpdateSettings, "pace", lambda self: update.Pace(self.rounds, self.seconds, patience=0.0))


def run(busy=False, output=None, **settings) -> str:
    console = Console(record=True, width=160)
    assert bench_update(UpdateSettings(**(TINY | settings)), busy, output, console) == 0
    return console.export_text()


@pytest.mark.usefixtures("quick", "peers")
def test_table_and_file_agree_the_floor_stands_beside_and_lost_peers_are_named(tmp_path):
    output = tmp_path / "bench.json"
    text = run(output=output, precisions=("fp32", "fp16/target=kahan"), peers=True)
    record = json.loads(output.read_text())
    rows = {row["name"]: row for row in record["rows"]}
    assert list(rows) == ["products alone, fp32", "products alone, fp16", "fp32", "fp16/target=kahan", "Brisk"]
    for row in rows.values():
        assert 0 < row["p50_s"] <= row["p99_s"]
        assert row["per_second"] * row["p50_s"] < 3  # the same clock, so near 1; a median above the mean is rare
        assert number(row["per_second"]) in text
    assert rows["fp32"]["of_first"] == 1
    assert 0 < rows["fp32"]["of_floor"] < 1
    assert 0 < rows["fp16/target=kahan"]["of_floor"] < 1
    assert rows["Brisk"]["of_floor"] > 0
    assert record["missing"] == {
        "Absent": "not installed: No module named 'no_such_library'",
        "Mortal": "died with exit code 9",
    }
    assert "Mortal is not in the table: died with exit code 9" in text
    assert len(record["rounds"]) == 2
    assert record["machine"]["cores"] == os.cpu_count()
    assert set(record["versions"]["fp32"]) == {"edge-sac", "torch", "numpy"}
    assert any("rounds" in note for note in record["notes"])


@pytest.mark.usefixtures("quick", "peers")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_learner_beside_a_busy_core_is_compared_with_the_same_learner_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(update, "LEARNER", "fake_Brisk")
    monkeypatch.setattr(update, "FLOOR", "fake_Brisk")
    output = tmp_path / "busy.json"
    run(busy=True, output=output, precisions=("fp32",), rounds=1, peers=True)
    record = json.loads(output.read_text())
    rows = [row for row in record["rows"] if row["name"].startswith("fp32")]
    assert [row["name"] for row in rows] == ["fp32, alone", "fp32, beside, 1", "fp32, beside, 2"]
    assert [row["threads"] for row in rows] == [1, 1, 2]
    assert rows[0]["of_alone"] == 1
    assert rows[1]["of_alone"] == pytest.approx(rows[1]["per_second"] / rows[0]["per_second"])
    assert "Absent" in record["missing"]
    assert any(name.startswith("Mortal") for name in record["missing"])


def test_every_peer_has_the_module_that_builds_it():
    assert all(find_spec(module(name)) is not None for name in PEERS)


@pytest.mark.parametrize(
    ("precisions", "wrong"),
    [
        pytest.param("fp8", "fp8", id="unknown precision"),
        pytest.param("fp16/target", "no key=value", id="no value"),
        pytest.param("fp16/target=later", "later", id="unknown value"),
        pytest.param("fp16/colour=red", "colour", id="unknown key"),
        pytest.param("fp32/moments=8bit", "8bit", id="settings that do not go together"),
    ],
)
def test_variant_that_there_is_not_is_refused_before_anything_starts(precisions, wrong):
    with pytest.raises(ConfigError, match=wrong):
        run(precisions=(precisions,))


def test_file_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path):
    with pytest.raises(Refused, match="nowhere is no writable folder"):
        run(output=tmp_path / "nowhere" / "bench.json")
