"""Episodes are driven to their end without exploration, judged by what the environment says, never by a NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from edge_sac.errors import NonFinite
from edge_sac.evaluation import Episode, Summary, finite_obs, finite_reward, run_episodes, summarise

NAMES = ("angle", "speed")


class Countdown:
    """Ends after seed % 10 steps; each step's reward is its action."""

    def __init__(self, info: dict[str, Any] | None = None, bad_step: int = -1, bad_reward: bool = False) -> None:
        self.info, self.bad_step, self.bad_reward = info or {}, bad_step, bad_reward
        self.left = self.step_number = 0

    def reset(self, *, seed: int) -> tuple[NDArray[np.float64], dict[str, Any]]:
        self.left, self.step_number = seed % 10, 0
        return self._obs(), {}

    def _obs(self) -> NDArray[np.float64]:
        return np.array([self.left, np.nan if self.step_number == self.bad_step else 0.0])

    def step(self, action: NDArray[Any]) -> tuple[NDArray[np.float64], Any, bool, bool, dict[str, Any]]:
        self.left -= 1
        self.step_number += 1
        reward = np.inf if self.bad_reward else action[0]
        return self._obs(), reward, self.left == 0, False, self.info


def one(_obs: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.ones(1, np.float32)


def test_one_episode_for_each_seed_with_its_length_and_return() -> None:
    episodes = run_episodes(Countdown(), one, [3, 5], NAMES)
    assert episodes == [Episode(3, 3, 3.0, None, None), Episode(5, 5, 5.0, None, None)]


@pytest.mark.parametrize("key", ["success", "is_success"])
def test_success_is_what_the_last_info_says_under_either_name(key: str) -> None:
    (episode,) = run_episodes(Countdown({key: np.True_, "success_fraction": np.float32(0.5)}), one, [1], NAMES)
    assert (episode.success, episode.success_fraction) == (True, 0.5)


def test_episode_without_an_end_is_given_up_after_the_limit() -> None:
    (episode,) = run_episodes(Countdown(), one, [0], NAMES, max_steps=20)
    assert episode.length == 20


def test_policy_sees_float32_whatever_the_environment_gives() -> None:
    seen = []

    def act(obs: NDArray[np.float32]) -> NDArray[np.float32]:
        seen.append(obs.dtype)
        return np.ones(1, np.float32)

    run_episodes(Countdown(), act, [2], NAMES)
    assert seen == [np.float32, np.float32]


@pytest.mark.parametrize("step", [0, 2, 3])
def test_nan_is_named_by_step_and_channel_even_in_the_last_observation(step: int) -> None:
    with pytest.raises(NonFinite, match=f"step {step}: observation 'speed' is nan"):
        run_episodes(Countdown(bad_step=step), one, [3], NAMES)


def test_infinite_reward_is_no_return() -> None:
    with pytest.raises(NonFinite, match="step 0: the reward is inf"):
        run_episodes(Countdown(bad_reward=True), one, [3], NAMES)


def test_stopped_evaluation_gives_only_whole_episodes() -> None:
    count = 0

    def act(obs: NDArray[np.float32]) -> NDArray[np.float32]:
        nonlocal count
        count += 1
        return one(obs)

    episodes = run_episodes(Countdown(), act, [3, 9, 3], NAMES, stopped=lambda: count >= 5)
    assert [episode.length for episode in episodes] == [3]


def test_value_beyond_float32_is_refused_with_what_the_environment_gave() -> None:
    with pytest.raises(NonFinite, match=r"here: observation 'speed' is 1e\+39"):
        finite_obs(np.array([0.0, 1e39]), NAMES, "here")
    np.testing.assert_array_equal(finite_obs([1, 2], NAMES, "here"), [1, 2])


@pytest.mark.parametrize("reward", [np.nan, -np.inf, np.array([np.nan], np.float32)[0]])
def test_reward_that_is_no_number_is_refused(reward: float) -> None:
    with pytest.raises(NonFinite, match="here: the reward is"):
        finite_reward(reward, "here")


def test_means_are_over_the_episodes_that_were_judged() -> None:
    judged = [Episode(0, 1, 1.0, True, 0.5), Episode(1, 1, 3.0, False, 0.0), Episode(2, 1, 5.0, None, None)]
    assert summarise(judged) == Summary(3, 3.0, 0.5, 0.25)
    assert summarise(judged[2:]) == Summary(1, 5.0, None, None)


def test_policies_are_ranked_by_the_goal_first_and_then_by_the_return() -> None:
    holds, rich = Summary(1, 1.0, 0.0, 0.2), Summary(1, 9.0, 0.0, 0.1)
    assert holds.merit > rich.merit
    # What is held for longer beats what happens to pass the threshold more often.
    assert Summary(1, 1.0, 0.1, 0.8).merit > Summary(1, 1.0, 0.2, 0.7).merit
    assert Summary(1, 2.0, None, None).merit > Summary(1, 1.0, None, None).merit
    assert Summary(1, 0.0, 1.0, None).merit > Summary(1, 9.0, 0.5, None).merit
