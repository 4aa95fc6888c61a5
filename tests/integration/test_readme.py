"""What the README says to type works."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


def test_python_example_drives_a_trained_policy(tmp_path, monkeypatch, capsys):
    from rich.console import Console

    from edge_sac.commands.train import train
    from edge_sac.config import AgentConfig, Config

    agent = AgentConfig(hidden=(8, 8), batch=8)
    config = Config(physics="equations", steps=120, random_steps=100, replay_capacity=2_000, agent=agent)
    monkeypatch.chdir(tmp_path)
    assert train(config, None, Console(quiet=True)) == 0
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    names: dict[str, object] = {}
    exec(example, names)
    assert "furuta 50.0 ['arm_position'" in capsys.readouterr().out
    assert abs(float(names["torque"])) <= 0.03  # type: ignore[arg-type]


def test_every_page_the_readme_links_to_is_there():
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README.read_text())
    assert len(links) >= 4
    missing = [link for link in links if not (README.parent / link).is_file()]
    assert missing == []


@pytest.mark.parametrize("option", ["--env", "--precision", "--target", "--config", "--steps", "--resume-or-show"])
def test_options_named_in_the_readme_or_the_makefile_exist(option, capsys, monkeypatch):
    from edge_sac.cli import main

    monkeypatch.setattr("sys.argv", ["edge-sac", "train", "--help"])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit):
        main()
    assert option in capsys.readouterr().out
