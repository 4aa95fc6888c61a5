"""Environments by name: what is built, what is refused, and what an import drags in."""

import subprocess
import sys
from importlib import resources, util
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

from robots.errors import SpecError
from sim import registration
from sim.equations_robot import EquationsRobot
from sim.pybullet_robot import PyBulletRobot
from sim.registration import make_env, physics_available, register, resolve_physics


def rollout(env: gymnasium.Env, seed: int, steps: int) -> NDArray[np.float32]:
    """Return the observations [N, O] of one episode with actions drawn from the seed."""
    rng = np.random.default_rng(seed)
    obs, _ = env.reset(seed=seed)
    seen = [obs]
    for _ in range(steps):
        obs, _, terminated, truncated, _ = env.step(rng.uniform(-1, 1, 1).astype(np.float32))
        seen.append(obs)
        if terminated or truncated:
            break
    return np.array(seen)


def test_gymnasium_finds_nothing_wrong(physics: str) -> None:
    register()
    env = gymnasium.make("edge_sac/Furuta-v0", physics=physics)
    check_env(env.unwrapped)
    env.close()


def test_gymnasium_id_takes_physics_and_leads_to_the_robots_spec() -> None:
    register()
    register()
    env = gymnasium.make("edge_sac/Furuta-v0", physics="equations")
    assert env.unwrapped.robot_spec.name == "furuta"
    assert isinstance(env.unwrapped.robot, EquationsRobot)
    env.close()


def test_a_seed_alone_determines_an_episode_whatever_happened_before(physics: str) -> None:
    fresh, used = make_env("furuta", physics), make_env("furuta", physics)
    expected = rollout(fresh, seed=7, steps=60)
    for seed in range(5):
        rollout(used, seed, steps=40 + seed)
    assert np.array_equal(rollout(used, seed=7, steps=60), expected)
    assert not np.array_equal(rollout(used, seed=8, steps=60)[0], expected[0])
    fresh.close()
    used.close()


def test_every_episode_starts_hanging_at_rest_near_the_middle(physics: str) -> None:
    env = make_env("furuta", physics)
    names = [channel.name for channel in env.robot_spec.observation.channels]
    for seed in range(200 if physics == "equations" else 20):
        obs, info = env.reset(seed=seed)
        seen = dict(zip(names, obs, strict=True))
        # One encoder count, 0.18 degrees, may come on top of the 5.
        assert np.degrees(np.arccos(min(seen["pendulum_cos"], 1.0))) < 5.0 + 0.18
        assert abs(seen["arm_position"]) <= 0.1 + 0.0031
        assert seen["arm_speed"] == seen["pendulum_speed"] == seen["previous_action"] == 0.0
        assert info == {"applied": pytest.approx([0.0]), "success_fraction": 0.0}
    env.close()


def test_the_task_is_solvable_within_torque_cable_and_time(physics: str, controller) -> None:
    env = make_env("furuta", physics)
    for seed in range(1000, 1005):
        obs, _ = env.reset(seed=seed)
        steps, done = 0, False
        while not done:
            obs, reward, terminated, truncated, info = env.step(controller.act(obs))
            assert 0.0 <= reward <= 1.0
            steps += 1
            done = terminated or truncated
        assert steps == 500
        assert truncated
        assert info["success"]
        assert info["success_fraction"] >= 0.9
    env.close()


def test_auto_takes_pybullet_where_installed_and_the_equations_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(util, "find_spec", lambda _: object())
    assert resolve_physics("auto") == "pybullet"
    monkeypatch.setattr(util, "find_spec", lambda _: None)
    assert resolve_physics("auto") == "equations"
    assert physics_available() == {"equations": "ok", "pybullet": "pip install 'edge-sac[sim]'"}


def test_pybullet_asked_for_where_missing_is_refused_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(util, "find_spec", lambda _: None)
    with pytest.raises(SpecError, match=r"pip install 'edge-sac\[sim\]'"):
        make_env("furuta", physics="pybullet")
    with pytest.raises(SpecError, match=r"physics = 'mujoco': expected one of auto, pybullet, equations"):
        make_env("furuta", physics="mujoco")


def test_an_installed_pybullet_is_taken_by_default() -> None:
    pytest.importorskip("pybullet")
    env = make_env("furuta")
    assert isinstance(env.robot, PyBulletRobot)
    env.close()


def test_an_unknown_robot_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SpecError, match=r"unknown robot 'acrobot'; known are: furuta"):
        make_env("acrobot")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('asset = "furuta.urdf"', 'asset = "missing.urdf"', r"sim\.asset = 'missing\.urdf'"),
        ('model = "furuta"', 'model = "acrobot"', r"sim\.model = 'acrobot': expected 'furuta'"),
        ('name = "furuta-swing-up"', 'name = "fly"', r"task\.name = 'fly': expected one of"),
        ('actuator = "none"', 'actuator = "torque"\ntorque = 1.0', r"expected|range"),
    ],
)
def test_a_robot_file_without_a_twin_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    text = resources.files("robots").joinpath("furuta.toml").read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    with pytest.raises(SpecError, match=message):
        make_env(str(path), "equations")


def test_a_robot_file_may_bring_its_own_urdf(tmp_path: Path) -> None:
    text = resources.files("robots").joinpath("furuta.toml").read_text()
    (tmp_path / "mine.toml").write_text(text.replace('asset = "furuta.urdf"', 'asset = "mine.urdf"'))
    urdf = (registration.ASSETS / "furuta.urdf").read_text()
    (tmp_path / "mine.urdf").write_text(urdf.replace('mass value="0.024"', 'mass value="0.048"'))
    heavy = make_env(str(tmp_path / "mine.toml"), "equations")
    assert heavy.robot._body.weight == pytest.approx(2 * 0.024 * 9.81 * 0.0645)


def test_registering_loads_no_physics_engine_and_no_torch() -> None:
    script = (
        "import sys, sim.registration as r; r.register(); r.make_env('furuta', 'equations').reset(seed=0);"
        "print(sorted({'pybullet', 'torch', 'onnx'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
