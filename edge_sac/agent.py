"""Soft Actor-Critic, one update at a time, in any of the formats of `precision`.

The order is the released code's of arXiv 2102.13565 (which is denisyarats/pytorch_sac's): critics, then actor and
temperature, then the target every second update. The networks' passes are `networks.Mlp`'s; only the head, the
squashed normal on [B, 2 A] values, goes through autograd. No line looks at a tensor's value on the host.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from edge_sac import replay
from edge_sac.config import AgentConfig
from edge_sac.half_matmul import MatmulPath
from edge_sac.loss_scale import LossScale
from edge_sac.losses import actor_loss, alpha_loss, critic_loss, soft_target
from edge_sac.networks import ALIGN, Mlp
from edge_sac.optim import HAdam
from edge_sac.precision import Precision
from edge_sac.squashed_gaussian import log_std, sample
from edge_sac.target import KahanTarget, TargetState, target_state


@dataclass(frozen=True)
class Batch:
    """Transitions on the learner's device; observations normalised, actions in [-1, 1], both in the stored dtype."""

    obs: Tensor  # [B, O]
    action: Tensor  # [B, A]
    reward: Tensor  # [B], fp32
    terminated: Tensor  # [B], bool
    next_obs: Tensor  # [B, O]

    @staticmethod
    def of(drawn: replay.Batch, device: torch.device) -> Batch:
        """Return what the replay drew; on a CPU in the replay's own memory, good until it draws again."""
        return Batch(
            obs=torch.from_numpy(drawn.obs).to(device),
            action=torch.from_numpy(drawn.action).to(device),
            reward=torch.from_numpy(drawn.reward).to(device),
            terminated=torch.from_numpy(drawn.terminated).to(device),
            next_obs=torch.from_numpy(drawn.next_obs).to(device),
        )


METRICS = ("critic_loss", "actor_loss", "q_mean", "log_prob")


@dataclass(frozen=True)
class Reading:
    """What the host sees of the learner when it looks."""

    row: dict[str, float]
    """METRICS of the last update, the temperature, and each loss scale with the steps it skipped."""
    dead: str
    """The first optimiser that has given up, in the order of the update, or empty."""
    halvings: int
    """How often a Kahan target had to halve its scale."""
    culprit: str
    """The weight that made it, or empty."""


def actor_shape(obs_dim: int, action_dim: int, hidden: tuple[int, ...]) -> Mlp:
    """Return the actor's network: from an observation [O] to means and raw log-deviations [2 A]."""
    return Mlp(1, (obs_dim, *hidden, 2 * action_dim))


def policy_weights(actor: Mlp, theta: Tensor) -> dict[str, NDArray[np.float32]]:
    """Return the actor's flat parameters by the policy graph's names: `w0` [I, O], `b0` [O], and so on."""
    weights: dict[str, NDArray[np.float32]] = {}
    for layer, (weight, bias) in enumerate(actor.views(theta)):
        weights[f"w{layer}"] = weight[0].float().cpu().numpy()
        weights[f"b{layer}"] = bias[0, 0].float().cpu().numpy()
    return weights


class Agent:
    """Two critics, their target, an actor and a temperature, each with its optimiser and loss scale."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        config: AgentConfig,
        precision: Precision,
        path: MatmulPath,
        device: torch.device,
        seed: int,
    ) -> None:
        self.config, self.precision, self.device = config, precision, device
        self.obs_dim, self.action_dim = obs_dim, action_dim
        self.target_entropy = -float(action_dim)
        self.updates = 0
        self._compute = path.compute
        hidden = tuple(config.hidden)
        self.actor = actor_shape(obs_dim, action_dim, hidden)
        self.critic = Mlp(2, (obs_dim + action_dim, *hidden, 1))
        streams = np.random.SeedSequence(seed).generate_state(2, np.uint64) >> np.uint64(1)
        initial = torch.Generator().manual_seed(int(streams[0]))
        psi = self._initialised(self.critic, initial)
        theta = self._initialised(self.actor, initial)
        log_alpha = torch.zeros(ALIGN, dtype=precision.dtype, device=device)
        log_alpha[0] = math.log(config.initial_alpha)
        self.target = target_state(precision.target, psi)
        self.critic_optim = self._optimiser(psi, config.critic_lr, precision.rounding == "kahan", self.target)
        self.actor_optim = self._optimiser(theta, config.actor_lr, precision.actor_rounding == "kahan")
        self.alpha_optim = self._optimiser(log_alpha, config.alpha_lr, precision.rounding == "kahan")
        self.generator = torch.Generator(device=device).manual_seed(int(streams[1]))
        self.metrics = torch.full((len(METRICS),), torch.nan, device=device)
        """The last update's METRICS, on the device; NaN before the first."""

    def _initialised(self, mlp: Mlp, generator: torch.Generator) -> Tensor:
        flat = torch.empty(mlp.size, dtype=self.precision.dtype, device=self.device)
        mlp.initialise(flat, generator)
        return flat

    def _optimiser(self, flat: Tensor, lr: float, kahan: bool, target: TargetState | None = None) -> HAdam:
        scale = LossScale(self.device, enabled=self.precision.loss_scaling)
        return HAdam(
            flat,
            scale,
            lr=lr,
            betas=(self.config.beta1, self.config.beta2),
            eps=self.config.eps,
            hypot=self.precision.hadam,
            kahan=kahan,
            target=target,
        )

    @property
    def alpha(self) -> Tensor:
        """Return the temperature, [] in fp32."""
        return self.alpha_optim.theta[0].float().exp()

    def update(self, batch: Batch) -> None:
        """Take one gradient step on each network from one batch."""
        self._update_critic(batch)
        self._update_actor_and_alpha(batch)
        self.updates += 1
        if self.updates % self.config.target_period == 0:
            self.target.follow(self.critic_optim.theta, self.config.tau)

    def _update_critic(self, batch: Batch) -> None:
        optim = self.critic_optim
        with torch.no_grad():
            next_action, next_log_prob = self._sample(self._actor_output(batch.next_obs)[-1][0])
            target_psi = self.target.form(optim.theta, out=optim.grad)
            next_q = self._critic_output(batch.next_obs, next_action, target_psi)[-1].squeeze(-1)
            target = soft_target(batch.reward, batch.terminated, next_q, next_log_prob, self.alpha, self.config.gamma)
            layers = self._critic_output(batch.obs, batch.action, optim.theta)
            loss, grad_q = critic_loss(layers[-1].squeeze(-1), target)
            seed = self._seed(grad_q, optim).unsqueeze(-1)
            self.critic.backward(seed, layers, optim.theta, self._compute, grad_flat=optim.grad)
            optim.step()
            self.metrics[0] = loss
            self.metrics[2] = layers[-1].mean(dtype=torch.float32)

    def _update_actor_and_alpha(self, batch: Batch) -> None:
        optim = self.actor_optim
        with torch.no_grad():
            layers = self._actor_output(batch.obs)
        output = layers[-1][0].detach().requires_grad_()
        action, log_prob = self._sample(output)
        with torch.no_grad():
            alpha, known_log_prob = self.alpha, log_prob.detach()
            critic_layers = self._critic_output(batch.obs, action.detach(), self.critic_optim.theta)
            loss, grad_q, grad_log_prob = actor_loss(critic_layers[-1].squeeze(-1), known_log_prob, alpha)
            seed = self._seed(grad_q, optim).unsqueeze(-1)
            grad_input = self.critic.backward(seed, critic_layers, self.critic_optim.theta, self._compute)
            assert grad_input is not None
            grad_action = grad_input[..., self.obs_dim :].sum(dim=0)
        torch.autograd.backward((action, log_prob), (grad_action, grad_log_prob * optim.loss_scale.scale))
        with torch.no_grad():
            assert output.grad is not None
            self.actor.backward(output.grad[None], layers, optim.theta, self._compute, grad_flat=optim.grad)
            optim.step()
            _, grad_log_alpha = alpha_loss(known_log_prob, alpha, self.target_entropy)
            self.alpha_optim.grad[0] = self._seed(grad_log_alpha, self.alpha_optim)
            self.alpha_optim.step()
            self.metrics[1] = loss
            self.metrics[3] = known_log_prob.mean()

    def _seed(self, grad: Tensor, optim: HAdam) -> Tensor:
        """Return the derivative times the loss scale, rounded to the stored dtype."""
        return (grad * optim.loss_scale.scale).to(self.precision.dtype)

    def _actor_output(self, obs: Tensor) -> list[Tensor]:
        return self.actor.forward(obs[None], self.actor_optim.theta, self._compute)

    def _critic_output(self, obs: Tensor, action: Tensor, psi: Tensor) -> list[Tensor]:
        return self.critic.forward(torch.cat((obs, action), dim=-1)[None], psi, self._compute)

    def _sample(self, output: Tensor) -> tuple[Tensor, Tensor]:
        mean, raw = output.chunk(2, dim=-1)
        noise = torch.randn(mean.shape, generator=self.generator, device=self.device).to(mean.dtype)
        fixes = self.precision
        return sample(mean, log_std(raw).exp(), noise, normal_fix=fixes.normal_fix, softplus_fix=fixes.softplus_fix)

    def policy_weights(self) -> dict[str, NDArray[np.float32]]:
        """Return the actor's weights by the policy graph's names."""
        return policy_weights(self.actor, self.actor_optim.theta)

    def read_metrics(self) -> Reading:
        """Return the last update's metrics: the one place where the host waits for the learner's tensors."""
        row = dict(zip(METRICS, self.metrics.tolist(), strict=True))
        row["alpha"] = float(self.alpha)
        row["entropy"] = -row["log_prob"]
        row["target_entropy"] = self.target_entropy
        dead = ""
        for name, optim in self._optimisers().items():
            row[f"{name}_scale"] = float(optim.loss_scale.scale)
            row[f"skipped_{name}"] = float(optim.loss_scale.skipped)
            if bool(optim.loss_scale.exhausted) and not dead:
                dead = name
        halvings, culprit = 0, ""
        if isinstance(self.target, KahanTarget):
            halvings = int(self.target.halvings)
            culprit = self.critic.name_at(int(self.target.culprit)) if halvings else ""
        return Reading(row, dead, halvings, culprit)

    def state(self) -> dict[str, Tensor]:
        """Return every tensor a checkpoint must hold; the generator's state is among them."""
        found = {"generator": self.generator.get_state(), "updates": torch.tensor(self.updates)}
        for name, optim in self._optimisers().items():
            found |= {f"{name}.{key}": value for key, value in optim.state().items()}
        return found

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Take up a saved state; raises KeyError or ValueError, with nothing changed, when it is another agent's."""
        for key, value in self.state().items():
            given = saved[key]
            if given.shape != value.shape or given.dtype != value.dtype:
                raise ValueError(
                    f"{key} is {list(given.shape)} of {given.dtype}; expected {list(value.shape)} of {value.dtype}"
                )
        for name, optim in self._optimisers().items():
            for key, value in optim.state().items():
                value.copy_(saved[f"{name}.{key}"])
            optim.loss_scale.revive()
        self.generator.set_state(saved["generator"].cpu())
        self.updates = int(saved["updates"])

    def _optimisers(self) -> dict[str, HAdam]:
        return {"critic": self.critic_optim, "actor": self.actor_optim, "alpha": self.alpha_optim}
