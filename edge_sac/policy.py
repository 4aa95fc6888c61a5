"""Policies that act: the live one a learner publishes into, the exported one read from a file; no torch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from edge_sac.contract import Contract
from edge_sac.errors import NonFinite, PolicyError
from edge_sac.policy_file import golden_mismatch, read_policy
from edge_sac.policy_graph import build_graph
from edge_sac.policy_session import PolicySession
from edge_sac.policy_weights import Vector, Weights, bad_value, check_shapes, weight_shapes


class ActingPolicy:
    """The policy that acts during training: the exported graph with its weights as bound inputs.

    One thread publishes and acts; between two steps a new version is swapped in whole.
    """

    def __init__(self, obs_dim: int, action_dim: int, hidden: Sequence[int], channels: Sequence[str] = ()) -> None:
        """Allocate and bind every buffer once; raises PolicyError, or MissingExtra without ONNX Runtime.

        `channels` [O] names the observations in the message about one that is not finite.
        """
        self._shapes = weight_shapes(obs_dim, action_dim, hidden)
        self._buffers = {name: np.zeros(shape, np.float32) for name, shape in self._shapes.items()}
        model = build_graph(obs_dim, action_dim, hidden).SerializeToString()
        self._session = PolicySession(model, obs_dim, action_dim, self._buffers, channels)
        self.version = 0
        """How many times weights were published."""

    def publish(self, weights: Weights) -> None:
        """Copy `weights` (float32, `weight_shapes`) into the bound buffers: all of them or, refused, none.

        Raises PolicyError for wrong names, shapes or dtype, and NonFinite naming the first number that is not
        finite, or the scale that is not above zero.
        """
        check_shapes(weights, self._shapes)
        problem = bad_value(weights)
        if problem is not None:
            raise NonFinite(f"weights not published, the policy keeps its last version: {problem}")
        for name, buffer in self._buffers.items():
            buffer[...] = weights[name]
        self.version += 1

    def act(self, obs: ArrayLike, noise: ArrayLike | None = None) -> Vector:
        """Return the action [A] for obs [O] and standard normal noise [A], None being deterministic.

        Raises NonFinite when an observation, named by index, or the action is not finite; PolicyError for a
        wrong shape or when nothing was published yet.
        """
        if self.version == 0:
            raise PolicyError("no weights were published yet: call publish() before act()")
        return self._session.step(obs, noise)


class Policy:
    """A policy read from an exported file, verified whole: contract, weights, graph and golden vectors."""

    def __init__(self, contract: Contract, weights: Weights, session: PolicySession) -> None:
        self.contract = contract
        self.weights = weights
        self._session = session

    @staticmethod
    def load(path: Path | str) -> Policy:
        """Return the policy in the file.

        Raises PolicyError, one line naming the file, what is wrong and what to do, when it is not an ONNX
        file, is truncated, lacks our metadata, holds unknown operators, wrong shapes or unusable weights,
        weights of another hash, or does not reproduce its golden vectors; MissingExtra without ONNX Runtime.
        """
        try:
            content = read_policy(Path(path))
            contract = content.contract
            session = PolicySession(
                content.model,
                len(contract.observation),
                len(contract.action),
                {},
                [channel.name for channel in contract.observation],
            )
            problem = golden_mismatch(content, session)
        except (PolicyError, NonFinite) as error:
            raise PolicyError(f"{path}: {error}") from error
        if problem is not None:
            raise PolicyError(f"{path}: {problem}; do not run it: export the policy again")
        return Policy(contract, content.weights, session)

    @property
    def hash(self) -> str:
        """The sha256, in hex, of every weight the policy acts by, normaliser and action scaling included."""
        return self.contract.weights_hash

    @property
    def provider(self) -> str:
        """The execution provider really bound."""
        return self._session.provider

    def act(self, obs: ArrayLike, noise: ArrayLike | None = None) -> Vector:
        """Return the action [A] for obs [O], both in the contract's units; deterministic without noise [A].

        Raises NonFinite when an observation, named, or the action is not finite, PolicyError for a wrong
        shape.
        """
        return self._session.step(obs, noise)
