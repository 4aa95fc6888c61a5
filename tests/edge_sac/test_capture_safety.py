"""Nothing in an update, or in a draw on the device, needs the host: what does cannot be recorded as a graph.

torch's "meta" device has shapes and no values. What looks at a value, or has a shape that depends on one, raises there;
and a tensor that was made on the host shows, since it is not on that device.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from edge_sac import agent as agent_module
from edge_sac.agent import Agent
from edge_sac.config import AgentConfig
from edge_sac.device_replay import DeviceReplay
from edge_sac.half_matmul import MatmulPath
from edge_sac.precision import PRESETS, Precision, precision
from edge_sac.replay import Replay
from edge_sac.sources import static_batch
from edge_sac.storage import STORAGES

DEVICE = torch.device("meta")
OBS, ACTION, BATCH = 5, 2, 32


class DeviceAlone(TorchDispatchMode):
    """Fails on an operation that reads or makes a tensor elsewhere, a number in a tensor included."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves((args, kwargs, made)):
            if isinstance(tensor, torch.Tensor):
                assert tensor.device == DEVICE, f"{func} has a tensor on the {tensor.device}"
        return made


class AnyGenerator(torch.Generator):
    """A generator that says it is of any device; there is none of this one."""

    def __new__(cls, device: Any = None) -> AnyGenerator:  # noqa: ARG004
        return super().__new__(cls)


@pytest.fixture(autouse=True)
def no_generators(monkeypatch: pytest.MonkeyPatch) -> None:
    # Loaded at the first operation on this device, and not with another class of generators.
    torch.zeros(2, device=DEVICE).add_(1)
    monkeypatch.setattr(torch, "Generator", AnyGenerator)


def updated(chosen: Precision) -> Agent:
    """Return an agent on the device that has made an update, seen to need nothing else."""
    config = AgentConfig(hidden=(16, 16), batch=BATCH, target_period=1)
    learner = Agent(OBS, ACTION, config, chosen, MatmulPath(chosen.dtype, chosen.dtype, "test"), DEVICE, seed=0)
    learner.generator = None  # type: ignore[assignment]
    batch = static_batch(BATCH, OBS, ACTION, chosen.dtype, DEVICE)
    with DeviceAlone():
        learner.update(batch)
    return learner


@pytest.mark.parametrize("name", PRESETS)
def test_update_of_every_preset_needs_nothing_of_the_host(name: str) -> None:
    assert updated(precision(name)).updates == 1


@pytest.mark.parametrize("target", ["lag", "kahan", "plain"])
@pytest.mark.parametrize("gradients", ["whole", "in-place"])
def test_update_with_every_option_needs_nothing_of_the_host(target: str, gradients: str) -> None:
    chosen = precision("fp16", target, rounding="stochastic", moments="8bit", gradients=gradients)
    assert updated(chosen).updates == 1


@pytest.mark.parametrize("storage", STORAGES)
def test_draw_on_the_device_needs_nothing_of_the_host(storage: str) -> None:
    replay, rng = Replay(40, OBS, ACTION, storage), np.random.default_rng(0)
    obs = rng.normal(size=(31, OBS))
    for step in range(30):
        replay.add(obs[step], np.zeros(ACTION), 0.0, step == 9, False, obs[step + 1])
        if step == 9:
            replay.cut()
    generator: Any = SimpleNamespace(device=DEVICE)
    copied = DeviceReplay(replay.ring, BATCH, gamma=0.9, n_step=3, dtype=torch.float16, generator=generator)
    copied._generator = None  # type: ignore[assignment]
    copied.follow()
    with DeviceAlone():
        batch = copied.draw()
    assert batch.obs.shape == (BATCH, OBS)


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        pytest.param(lambda alpha: alpha * torch.tensor([2.0]), "on the cpu|same device", id="a tensor of the host"),
        pytest.param(lambda alpha: torch.tensor(2.0).to(DEVICE) * alpha, "on the cpu", id="a number sent over"),
        pytest.param(lambda alpha: alpha * float(alpha), "meta", id="a look at a value"),
        pytest.param(lambda alpha: alpha[alpha > 0].sum(), "meta", id="a shape that depends on a value"),
    ],
)
def test_what_needs_the_host_is_found(spoil: Any, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = agent_module.alpha_loss

    def spoilt(log_prob: torch.Tensor, alpha: torch.Tensor, target_entropy: float) -> torch.Tensor:
        return whole(log_prob, spoil(alpha), target_entropy)

    monkeypatch.setattr(agent_module, "alpha_loss", spoilt)
    with pytest.raises((AssertionError, RuntimeError, NotImplementedError), match=told):
        updated(precision("fp16"))
