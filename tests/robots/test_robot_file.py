"""A robot's file: what is read from it, and what is refused with file, key, value and expectation."""

import subprocess
import sys
from importlib import resources
from pathlib import Path

import pytest

from robots.errors import SpecError
from robots.fake import FAKE_ROBOT, fake_spec
from robots.robot_file import known_robots, load_robot, parse_robot
from robots.spec import FreeJoint, TorqueJoint

FURUTA = resources.files("robots").joinpath("furuta.toml").read_text()


def test_shipped_furuta_is_read_with_its_limits_and_rate() -> None:
    spec = load_robot("furuta")
    arm, pendulum = spec.joint
    assert isinstance(arm, TorqueJoint)
    assert isinstance(pendulum, FreeJoint)
    assert arm.position == (-2.0, 2.0)
    assert spec.actuated == (arm,)
    assert (spec.dt, spec.episode_steps) == (0.02, 500)
    assert spec.sim.substep <= 0.001
    # Success is judged within 10 degrees, starts are within 5.
    assert spec.task.goal_tolerance == pytest.approx(0.17453, abs=5e-5)
    assert max(map(abs, spec.reset.position[1])) <= 0.08727


def test_every_shipped_robot_loads_under_its_own_name() -> None:
    for name in known_robots():
        assert load_robot(name).name == name


def test_a_robot_is_loaded_from_a_path_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(FURUTA.replace('name = "furuta"', 'name = "mine"', 1))
    assert load_robot(path).name == "mine"
    assert load_robot(str(path)) == load_robot(path)


def test_a_missing_file_and_an_unknown_name_are_refused_with_the_known_names(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"nowhere\.toml: no such robot file.*furuta"):
        load_robot(tmp_path / "nowhere.toml")
    with pytest.raises(SpecError, match=r"unknown robot 'furuto'; known are: furuta"):
        load_robot("furuto")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("speed = 40.0", "speed = nan", r"joint\[0\]\.speed = nan: expected a finite number"),
        ("torque = 0.03 ", "torque = inf ", r"joint\[0\]\.torque = inf: expected a finite"),
        ("torque = 0.03 ", "torque = 0.0 ", r"joint\[0\]\.torque = 0\.0: expected a number above 0"),
        ("torque = 0.03 ", "torque = -0.03 ", r"joint\[0\]\.torque = -0\.03: expected .* above 0"),
        ("torque = 0.03 ", "#", r"joint\[0\]: .*missing required field `torque`"),
        ("torque = 0.03 ", 'torque = "big" ', r"joint\[0\]\.torque = 'big': Expected `float`"),
        ("[-2.0, 2.0]", "[2.0, 2.0]", r"joint\[0\]\.position = \[2\.0, 2\.0\]: expected .*lower < upper"),
        ("[-2.0, 2.0]", "[-2.0, -inf]", r"joint\[0\]\.position\[1\] = -inf: expected a finite"),
        ("schema = 1", "schema = 2", r"schema = 2: Invalid enum value 2"),
        ("rate_tolerance = 0.1", "rate_tolerance = 1.5", r"rate_tolerance = 1\.5: expected a share"),
        ("control_hz = 50.0", "control_hz = 0", r"control_hz = 0\.0: expected a number above 0"),
        ('stop_policy = "off"', 'stop_policy = "coast"', r"stop_policy = 'coast': Invalid enum"),
        ("control_hz = 50.0", "control_hz = 50.0\nshoe_size = 9", r"unknown field `shoe_size`"),
        ('actuator = "torque"', 'actuator = "steam"', r"joint\[0\]\.actuator = 'steam': Invalid value"),
        ('name = "pendulum"', 'name = "arm"', r"joint = \['arm', 'arm'\]: expected .*own name"),
        ("[[-0.03, 0.03]]", "[[-0.04, 0.03]]", r"action\.range\[0\] = .*inside the joint's limits"),
        ("[[-0.03, 0.03]]", "[]", r"action\.range = 0: expected one .* for each of \['arm'\]"),
        (
            'joint = "arm", signal = "position"',
            'joint = "leg", signal = "position"',
            r"channels\[0\]\.joint = 'leg': expected one of",
        ),
        (
            'joint = "arm", signal = "previous_action"',
            'joint = "pendulum", signal = "previous_action"',
            r"channels\[5\]\.joint = 'pendulum'",
        ),
        ("scale = 8.0", "scale = 0.0", r"channels\[3\]\.scale = 0\.0: expected a number above 0"),
        ('name = "pendulum_cos"', 'name = "pendulum_sin"', r"observation\.channels = .*own name"),
        ("[-0.0872, 0.0872]", "[0.1, 0.0872]", r"reset\.position\[1\] = \[0\.1, 0\.0872\]"),
        (
            "viscous = 0.00027",
            "viscous = -0.1",
            r"sim\.friction\.arm\.viscous = -0\.1: expected .*at least 0",
        ),
        ("[sim.friction.pendulum]", "[sim.friction.leg]", r"sim\.friction = \['arm', 'leg'\]"),
        ("resistance = 8.4", "resistance = 0", r"sim\.motor\.resistance = 0\.0"),
        ("judged_time = 5.0", "judged_time = 11.0", r"judged_time = 11\.0: expected at most episode_time"),
        ("success_share = 0.9", "success_share = 1.9", r"task\.success_share = 1\.9"),
    ],
)
def test_a_bad_value_is_refused_by_file_key_value_and_expectation(old: str, new: str, message: str) -> None:
    assert old in FURUTA
    with pytest.raises(SpecError, match=r"^mine\.toml: .*" + message):
        parse_robot(FURUTA.replace(old, new, 1).encode(), "mine.toml")


@pytest.mark.parametrize("data", [b"joint = [", b"\xff\xfe"])
def test_what_is_not_toml_is_refused(data: bytes) -> None:
    with pytest.raises(SpecError, match=r"mine\.toml: not a TOML file"):
        parse_robot(data, "mine.toml")


def test_a_robot_without_a_driven_joint_is_refused() -> None:
    text = FAKE_ROBOT.replace('actuator = "torque"', 'actuator = "none"').replace("torque = 5.0", "")
    with pytest.raises(SpecError, match=r"expected at least one joint with actuator"):
        parse_robot(text.encode(), "fake")


def test_a_position_joint_needs_positive_gains() -> None:
    text = FAKE_ROBOT.replace('actuator = "torque"', 'actuator = "position"\ngains = [1.0, 0.0]')
    text = text.replace("range = [[-5.0, 5.0]]", "range = [[-1.0, 1.0]]")
    with pytest.raises(SpecError, match=r"joint\[0\]\.gains\[1\] = 0\.0"):
        parse_robot(text.encode(), "fake")
    assert parse_robot(text.replace("[1.0, 0.0]", "[1.0, 0.1]").encode(), "fake").joint[0].actuator == "position"


def test_a_description_does_not_change() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        fake_spec().control_hz = 100.0


def test_a_robot_is_described_and_observed_without_gymnasium_pybullet_or_torch() -> None:
    script = (
        "import sys; import robots.robot_file, robots.robot, robots.observation, robots.action, robots.safety,"
        "robots.tasks, robots.furuta, robots.fake; robots.tasks.make_task(robots.robot_file.load_robot('furuta'));"
        "print(sorted({'gymnasium', 'pybullet', 'torch', 'sim', 'edge_sac'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        pytest.param("torque = 0.03 ", "torque = 1e39 ", "torque", id="finite in float64 alone"),
        pytest.param("torque = 0.03 ", f"torque = {10**400} ", "torque", id="an integer beyond any float"),
        pytest.param("judged_time = 5.0", "judged_time = 0.009", "judged_time", id="under one control period"),
        pytest.param("command_valid = 0.1 ", "command_valid = 0.001 ", "command_valid", id="commands that never hold"),
        pytest.param("[[-0.1, 0.1]", "[[2.5, 2.5]", "reset.position", id="a start outside the range"),
        pytest.param(
            "[randomize]", "[randomize]\nmass = [0.9, 1.1]", "randomize", id="randomisation that nothing reads"
        ),
        pytest.param("[link]", '[link]\nurl = "serial:///dev/ttyUSB0"', "link.url", id="a link that nothing opens"),
        pytest.param('name = "arm"', 'name = "arm"\nsign = -1', "sign", id="a sign that nothing applies"),
    ],
)
def test_what_cannot_be_or_is_not_read_is_refused_by_key(old: str, new: str, key: str) -> None:
    from importlib import resources

    text = resources.files("robots").joinpath("furuta.toml").read_text()
    assert old in text
    with pytest.raises(SpecError, match=key):
        parse_robot(text.replace(old, new, 1).encode(), "mine.toml")
