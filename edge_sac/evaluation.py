"""Episodes driven without exploration, and what they add up to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, SupportsFloat

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edge_sac.errors import NonFinite

Vector = NDArray[np.float32]


@dataclass(frozen=True)
class Episode:
    """One episode's outcome."""

    seed: int
    length: int
    episode_return: float
    success: bool | None
    """None where the environment does not say."""
    success_fraction: float | None
    """Share of the judged window in which the goal held."""


@dataclass(frozen=True)
class Summary:
    """Means over episodes; None where the environment judges no success."""

    episodes: int
    return_mean: float
    success_rate: float | None
    success_fraction: float | None

    @property
    def merit(self) -> tuple[float, float]:
        """Return what policies are ranked by: the goal first, then the return."""
        return (self.success_fraction or self.success_rate or 0.0, self.return_mean)


def finite_obs(obs: ArrayLike, names: Sequence[str], what: str) -> Vector:
    """Return an observation [O] in float32; raises NonFinite, naming the channel, for what float32 cannot hold."""
    given = np.asarray(obs)
    with np.errstate(over="ignore"):
        values = given.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise NonFinite(f"{what}: observation {names[bad[0]]!r} is {given[bad[0]]}")
    return values


def finite_reward(reward: SupportsFloat, what: str) -> float:
    """Return a reward; raises NonFinite for a NaN or an infinity."""
    value = float(reward)
    if not math.isfinite(value):
        raise NonFinite(f"{what}: the reward is {value}")
    return value


def run_episodes(
    env: Any,
    act: Callable[[Vector], Vector],
    seeds: Iterable[int],
    names: Sequence[str],
    max_steps: int = 100_000,
    stopped: Callable[[], bool] = lambda: False,
) -> list[Episode]:
    """Return one Episode for each seed, `act` choosing every action; fewer once `stopped`.

    Raises NonFinite for a bad observation or reward.
    """
    episodes = []
    for seed in seeds:
        episode = _run_episode(env, act, seed, names, max_steps, stopped)
        if stopped():
            break
        episodes.append(episode)
    return episodes


def _run_episode(
    env: Any,
    act: Callable[[Vector], Vector],
    seed: int,
    names: Sequence[str],
    max_steps: int,
    stopped: Callable[[], bool],
) -> Episode:
    obs, info = env.reset(seed=seed)
    total, length, ended = 0.0, 0, False
    while not ended and length < max_steps and not stopped():
        where = f"evaluation, step {length}"
        obs, reward, terminated, truncated, info = env.step(act(finite_obs(obs, names, where)))
        total += finite_reward(reward, where)
        length += 1
        ended = bool(terminated or truncated)
    finite_obs(obs, names, f"evaluation, step {length}")
    success = info.get("success", info.get("is_success"))
    fraction = info.get("success_fraction")
    return Episode(
        seed,
        length,
        total,
        None if success is None else bool(success),
        None if fraction is None else float(fraction),
    )


def summarise(episodes: Sequence[Episode]) -> Summary:
    """Return the means over at least one episode."""
    rates = [episode.success for episode in episodes if episode.success is not None]
    fractions = [episode.success_fraction for episode in episodes if episode.success_fraction is not None]
    return Summary(
        episodes=len(episodes),
        return_mean=float(np.mean([episode.episode_return for episode in episodes])),
        success_rate=float(np.mean(rates)) if rates else None,
        success_fraction=float(np.mean(fractions)) if fractions else None,
    )
