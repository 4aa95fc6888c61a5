"""The benchmark measures real updates and writes what it prints."""

import json

import pytest
from rich.console import Console

from edge_sac.commands.bench import bench_update
from edge_sac.errors import ConfigError, Refused


def run(names, output=None) -> str:
    console = Console(record=True, width=160)
    assert bench_update(names, 8, 16, 2, 0.01, 1, "cpu", output, console) == 0
    return console.export_text()


def test_table_and_file_agree_and_ratios_are_to_the_first(tmp_path):
    output = tmp_path / "bench.json"
    text = run(["fp32", "fp16"], output)
    rows = json.loads(output.read_text())["rows"]
    assert [row["precision"] for row in rows] == ["fp32", "fp16"]
    assert rows[0]["ratio_median"] == 1
    assert rows[1]["ratio_median"] > 0.2
    assert f"{rows[1]['ratio_median']:.3f}" in text
    assert [row["bytes_per_transition"] for row in rows] == [102, 56]
    assert rows[1]["state_bytes"] < rows[0]["state_bytes"]


def test_unknown_precision_and_unwritable_file_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="fp8"):
        run(["fp8"])
    with pytest.raises(Refused, match="nowhere"):
        run(["fp32"], tmp_path / "nowhere" / "bench.json")
