"""Episodes driven without exploration, and what they add up to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


def require_finite(values: Vector, names: Sequence[str], what: str) -> None:
    """Raise NonFinite, naming the channel, when `values` [N] holds a NaN or an infinity."""
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise NonFinite(f"{what}: observation {names[bad[0]]!r} is {values[bad[0]]}")


def run_episodes(
    env: Any,
    act: Callable[[Vector], Vector],
    seeds: Iterable[int],
    names: Sequence[str],
    max_steps: int = 100_000,
) -> list[Episode]:
    """Return one Episode for each seed, `act` choosing every action. Raises NonFinite for a bad observation."""
    return [_run_episode(env, act, seed, names, max_steps) for seed in seeds]


def _run_episode(env: Any, act: Callable[[Vector], Vector], seed: int, names: Sequence[str], max_steps: int) -> Episode:
    obs, info = env.reset(seed=seed)
    total, length, ended = 0.0, 0, False
    while not ended and length < max_steps:
        require_finite(obs, names, f"evaluation, step {length}")
        obs, reward, terminated, truncated, info = env.step(act(obs))
        total += float(reward)
        length += 1
        ended = bool(terminated or truncated)
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
