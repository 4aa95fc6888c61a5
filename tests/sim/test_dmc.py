"""A task of the DeepMind Control Suite is the suite's own, seen through Gymnasium."""

import os
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

from sim.dmc import RENDERER, DmcEnv, PhysicsDiverged, _no_renderer
from sim.registration import DMC_TASKS

with _no_renderer():
    from dm_control import suite

CARTPOLE = ("position[0]", "position[1]", "position[2]", "velocity[0]", "velocity[1]")


def actions(env: gymnasium.Env, steps: int) -> NDArray[np.float32]:
    space = env.action_space
    return np.random.default_rng(1).uniform(space.low, space.high, (steps, *space.shape)).astype(np.float32)


def rollout(env: DmcEnv, seed: int, steps: int) -> list[tuple[bytes, float]]:
    """Return each observation's bytes and each reward of an episode's first steps."""
    obs, _ = env.reset(seed=seed)
    seen = [(obs.tobytes(), 0.0)]
    for action in actions(env, steps):
        obs, reward, *_ = env.step(action)
        seen.append((obs.tobytes(), reward))
    return seen


def bare(task: str, seed: int, steps: int, env: DmcEnv) -> list[tuple[bytes, float]]:
    """Return the same of the suite alone, each number rounded to float32 once."""
    alone = suite.load(*task.split("-"), task_kwargs={"random": seed})

    def flat(observation) -> bytes:
        return np.concatenate([np.ravel(value) for value in observation.values()]).astype(np.float32).tobytes()

    seen = [(flat(alone.reset().observation), 0.0)]
    for action in actions(env, steps):
        now = alone.step(action)
        seen.append((flat(now.observation), float(now.reward)))
    alone.close()
    return seen


@pytest.fixture(params=DMC_TASKS)
def task(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_an_episode_is_the_suites_own_bit_for_bit_whatever_happened_before(task: str) -> None:
    env = DmcEnv(task)
    for earlier in range(2):
        rollout(env, earlier, steps=60 + earlier)
    seen = rollout(env, seed=7, steps=100)
    assert seen == bare(task, 7, 100, env)
    assert all(0.0 <= reward <= 1.0 for _, reward in seen)
    env.close()


def test_a_seed_alone_determines_an_episode(task: str) -> None:
    used, fresh = DmcEnv(task), DmcEnv(task)
    used.reset(seed=3)
    used.reset()
    assert rollout(used, 7, 30) == rollout(fresh, 7, 30)
    assert rollout(used, 8, 1)[0] != rollout(fresh, 7, 1)[0]
    used.close()
    fresh.close()


def test_without_a_seed_the_next_episode_is_another_and_still_reproducible() -> None:
    one, two = DmcEnv("cartpole-swingup"), DmcEnv("cartpole-swingup")
    episodes = [[env.reset(seed=seed)[0].tobytes() for seed in (5, None, None)] for env in (one, two)]
    assert episodes[0] == episodes[1]
    assert len(set(episodes[0])) == 3
    one.close()
    two.close()


def test_an_episode_has_a_thousand_steps_and_its_end_is_a_time_limit(task: str) -> None:
    env = DmcEnv(task)
    env.reset(seed=0)
    still = np.zeros(env.action_space.shape, np.float32)
    ends = [env.step(still)[2:4] for _ in range(1_000)]
    assert ends[:-1] == [(False, False)] * 999
    assert ends[-1] == (False, True)
    with pytest.raises(gymnasium.error.ResetNeeded, match="reset first"):
        env.step(still)
    env.close()


@pytest.mark.parametrize(("discount", "ends"), [(0.0, (True, False)), (1.0, (False, True))])
def test_only_a_discount_of_zero_terminates(
    monkeypatch: pytest.MonkeyPatch, discount: float, ends: tuple[bool, bool]
) -> None:
    env = DmcEnv("cartpole-swingup")
    env.reset(seed=0)
    monkeypatch.setattr(env._env.task, "get_termination", lambda _: discount)
    assert env.step(np.zeros(1, np.float32))[2:4] == ends
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.zeros(1, np.float32))
    env.reset(seed=0)
    env.close()


def test_spaces_and_names_are_the_suites() -> None:
    env, walker = DmcEnv("cartpole-swingup"), DmcEnv("walker-walk")
    obs, _ = env.reset(seed=0)
    assert env.observation_names == CARTPOLE
    assert env.action_names == ("slide",)
    assert (env.control_hz, walker.control_hz) == (pytest.approx(100.0), pytest.approx(40.0))
    assert obs.dtype == np.float32
    physics = env._env.physics
    assert obs[:3] == pytest.approx([physics.cart_position(), *physics.pole_angle_cosine().flat, obs[2]])
    assert obs[3:] == pytest.approx(physics.velocity())
    assert env.action_space == gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float32)
    assert walker.observation_names[13:16] == ("orientations[13]", "height", "velocity[0]")
    assert len(set(walker.observation_names)) == walker.observation_space.shape[0] == 24
    assert walker.reset(seed=0)[0][14] == np.float32(walker._env.physics.torso_height())
    env.close()
    walker.close()


def test_a_repeated_action_adds_rewards_and_ends_with_the_episode() -> None:
    one, three = DmcEnv("cartpole-swingup"), DmcEnv("cartpole-swingup", action_repeat=3)
    assert three.control_hz == pytest.approx(one.control_hz / 3)
    one.reset(seed=0)
    three.reset(seed=0)
    push = np.ones(1, np.float32)
    for step in range(1, 335):
        single = [one.step(push) for _ in range(3 if step < 334 else 1)]
        obs, reward, terminated, truncated, _ = three.step(push)
        assert np.array_equal(obs, single[-1][0])
        # The last bit: from Python 3.12 on, sum carries what rounding loses.
        assert reward == pytest.approx(sum(seen[1] for seen in single), rel=1e-12)
        assert (terminated, truncated) == (False, step == 334)
    with pytest.raises(ValueError, match="action_repeat is 0; an action is held for at least 1"):
        DmcEnv("cartpole-swingup", action_repeat=0)
    one.close()
    three.close()


def test_physics_that_diverge_are_an_error_and_the_next_episode_is_whole() -> None:
    env = DmcEnv("cartpole-swingup")
    expected = rollout(env, 7, 20)
    with pytest.raises(PhysicsDiverged, match=r"under action \[nan\].*BADCTRL"):
        env.step(np.array([np.nan], np.float32))
    with pytest.raises(gymnasium.error.ResetNeeded):
        env.step(np.zeros(1, np.float32))
    assert rollout(env, 7, 20) == expected
    env.close()


# The suite bounds no observation.
@pytest.mark.filterwarnings("ignore:.*A Box observation space (minimum|maximum) value is")
def test_gymnasium_finds_nothing_wrong_and_closing_twice_is_allowed(task: str) -> None:
    env = gymnasium.make(f"dmc/{task}")
    check_env(env.unwrapped, skip_render_check=True)
    env.close()
    env.close()


@pytest.mark.parametrize("chosen", [None, "", "disabled"])
def test_no_renderer_is_loaded_and_the_users_setting_is_left_alone(chosen: str | None) -> None:
    script = (
        "import os, sys; from sim.dmc import DmcEnv; env = DmcEnv('cartpole-swingup'); env.reset(seed=0); env.close();"
        f"assert os.environ.get({RENDERER!r}) == {chosen!r};"
        "print([name for name in sys.modules if name.split('.')[0] in ('OpenGL', 'glfw', 'torch')])"
    )
    environ = {name: value for name, value in os.environ.items() if name not in (RENDERER, "DISPLAY")}
    environ |= {} if chosen is None else {RENDERER: chosen}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
