"""One ONNX Runtime session of an acting graph with its inputs and outputs bound once.

A step copies the observation into a bound buffer and runs: nothing is looked up, converted or allocated for
the runtime. The training graph and the exported one run under the same options, so the same weights give the
same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from edge_sac.errors import MissingExtra, NonFinite, PolicyError
from edge_sac.policy_weights import Vector, Weights

INSTALL = (
    "pip install 'edge-sac[cpu]' (on an x86-64 machine with CUDA: pip install 'edge-sac[gpu]', never both; "
    "on a Jetson: NVIDIA's own wheel)"
)


class PolicySession:
    """A policy that can step: `action = step(obs, noise)`, on one thread that never spins.

    `weights` are bound where the graph takes them as inputs; whoever owns the arrays may write into them
    between two steps. `channels` names the observations for the refusal message.
    """

    def __init__(
        self,
        model: bytes,
        obs_dim: int,
        action_dim: int,
        weights: Weights,
        channels: Sequence[str] = (),
    ) -> None:
        self._session = _open(model)
        self._channels = tuple(channels)
        self._obs = np.zeros((1, obs_dim), np.float32)
        self._noise = np.zeros((1, action_dim), np.float32)
        self._action = np.zeros((1, action_dim), np.float32)
        self._weights = dict(weights)
        self._binding = self._session.io_binding()
        for name, buffer in {"obs": self._obs, "noise": self._noise, **self._weights}.items():
            self._binding.bind_input(name, "cpu", 0, np.float32, list(buffer.shape), buffer.ctypes.data)
        self._binding.bind_output("action", "cpu", 0, np.float32, list(self._action.shape), self._action.ctypes.data)

    @property
    def provider(self) -> str:
        """The execution provider really bound."""
        return str(self._session.get_providers()[0])

    def step(self, obs: ArrayLike, noise: ArrayLike | None = None) -> Vector:
        """Return the action [A] for obs [O] and noise [A] (None: zeros, the deterministic policy).

        Raises PolicyError for a wrong shape and NonFinite when an observation or the action is not finite.
        """
        _fill(self._obs[0], obs, "obs")
        if noise is None:
            self._noise.fill(0.0)
        else:
            _fill(self._noise[0], noise, "noise")
        finite = np.isfinite(self._obs[0])
        if not finite.all():
            index = int(np.argmin(finite))
            name = f" ({self._channels[index]})" if self._channels else ""
            raise NonFinite(
                f"observation channel {index}{name} is {self._obs[0, index]}; "
                "the policy was not run: look at the sensor or the simulation behind it"
            )
        self._session.run_with_iobinding(self._binding)
        action: Vector = self._action[0].copy()
        finite = np.isfinite(action)
        if not finite.all():
            index = int(np.argmin(finite))
            raise NonFinite(
                f"action {index} is {action[index]} from finite observations; "
                "the weights or the noise overflow float32: go back to an earlier policy"
            )
        return action


def require_runtime() -> Any:
    """Return the onnxruntime module; raises MissingExtra with the line that installs it."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtra(f"a policy needs ONNX Runtime ({error}): {INSTALL}") from error
    # Uninstalling onnxruntime-gpu beside onnxruntime leaves a folder that imports and holds nothing.
    if not hasattr(onnxruntime, "InferenceSession"):
        raise MissingExtra(f"ONNX Runtime is installed but broken; uninstall every onnxruntime, then {INSTALL}")
    return onnxruntime


def _open(model: bytes) -> Any:
    """Return a session on the CPU; raises PolicyError when the runtime does not take the model."""
    ort = require_runtime()
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    # Packing and folding are for constants only: with them the frozen graph would round unlike the live one.
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    # 3 is errors only: the runtime warns on stderr that noise can be overridden, which is what it is for.
    options.log_severity_level = 3
    try:
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime's own exceptions share no base class
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise PolicyError(f"ONNX Runtime {ort.__version__} does not take the graph: {reason}") from error


def _fill(buffer: Vector, values: ArrayLike, what: str) -> None:
    """Copy values into the bound buffer; what overflows float32 becomes inf and is refused as such."""
    values = np.asarray(values)
    if values.shape != buffer.shape:
        raise PolicyError(f"{what} has shape {list(values.shape)}; the policy takes {list(buffer.shape)}")
    if values.dtype == np.float32:
        buffer[:] = values
    else:
        with np.errstate(over="ignore"):
            buffer[:] = values
