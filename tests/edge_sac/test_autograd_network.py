"""Networks that go through autograd: the same passes as the written-out ones, and what they add."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from edge_sac.agent import Agent, Batch
from edge_sac.autograd_network import NormalisedMlp
from edge_sac.config import AgentConfig
from edge_sac.half_matmul import MatmulPath
from edge_sac.networks import Mlp
from edge_sac.precision import precision

CPU = torch.device("cpu")
OBS, ACTION, SIZE = 5, 2, 32


class Plain(NormalisedMlp):
    """The same network as `Mlp`, by way of autograd."""

    def between(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


def agent(name: str = "fp32", norm: bool = True, **options) -> Agent:
    chosen = precision(name, **options)
    settings = AgentConfig(hidden=(16, 16), batch=SIZE, critic_norm=norm)
    return Agent(OBS, ACTION, settings, chosen, MatmulPath(chosen.dtype, torch.float32, "test"), CPU, seed=0)


def batch(dtype=torch.float32, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.normal(size=shape)).to(dtype)

    return Batch(
        obs=draw(SIZE, OBS),
        action=torch.tanh(draw(SIZE, ACTION)),
        reward=draw(SIZE).float(),
        discount=torch.full((SIZE,), 0.99),
        next_obs=draw(SIZE, OBS),
        weight=torch.ones(SIZE),
    )


@pytest.mark.parametrize(
    ("name", "options"),
    [("fp32", {}), ("fp16", {}), ("fp32", {"gradients": "in-place"}), ("fp16", {"gradients": "in-place"})],
)
def test_plain_network_by_autograd_takes_the_same_updates_as_the_written_one(name, options, monkeypatch):
    written = agent(name, norm=False, **options)
    monkeypatch.setattr("edge_sac.agent.NormalisedMlp", Plain)
    ours = agent(name, **options)
    assert isinstance(ours.critic, Plain)
    for seed in range(5):
        for one in (ours, written):
            one.update(batch(one.precision.dtype, seed))
    for mine, theirs in ((ours.critic_optim, written.critic_optim), (ours.actor_optim, written.actor_optim)):
        # Sums in another order; steps are of 3e-4.
        assert torch.allclose(mine.theta.float(), theirs.theta.float(), atol=2e-5 if name == "fp32" else 1e-3)


@pytest.mark.parametrize("name", ["fp32", "fp16"])
def test_normalised_critic_learns_a_fixed_target_and_stays_finite(name):
    ours = agent(name)
    data = replace(batch(ours.precision.dtype), discount=torch.zeros(SIZE))
    losses = []
    for _ in range(300):
        ours.update(data)
        losses.append(ours.read_metrics().row["critic_loss"])
    assert losses[-1] < 0.25 * losses[0]
    assert ours.read_metrics().dead == ""


def test_hidden_layers_are_normalised_and_the_output_is_bounded_by_the_last_weights():
    ours = agent()
    far = replace(batch(), obs=1e4 * batch().obs)
    ours.update(far)
    plain = agent(norm=False)
    plain.update(far)
    # |q| <= |w| sqrt(width): normalised values have a norm of at most sqrt(16).
    last = ours.critic.views(ours.critic_optim.theta)[-1][0]
    assert float(ours.last.q.abs().max()) <= 4 * float(last.norm(dim=1).max()) + 0.1
    assert float(plain.last.q.abs().max()) > 100


def test_normalised_critic_is_restored_bit_for_bit():
    one, two = agent("fp16"), agent("fp16")
    for seed in range(4):
        one.update(batch(torch.float16, seed))
    two.restore({key: value.clone() for key, value in one.state().items()})
    for seed in range(4, 8):
        one.update(batch(torch.float16, seed))
        two.update(batch(torch.float16, seed))
    for key, value in one.state().items():
        assert torch.equal(value, two.state()[key]), key


def test_written_network_is_what_is_used_unless_asked():
    assert type(agent(norm=False).critic) is Mlp
