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

from edge_sac import sampler
from edge_sac.adam import Adam
from edge_sac.autograd_network import NormalisedMlp
from edge_sac.coefficients import Coefficients
from edge_sac.config import AgentConfig
from edge_sac.half_matmul import MatmulPath, Product
from edge_sac.loss_scale import LossScale
from edge_sac.losses import actor_gradient, actor_loss, alpha_loss, critic_gradient, critic_loss, soft_target
from edge_sac.networks import ALIGN, FlatWeights, Gradient, GradientBuffer, Mlp
from edge_sac.optim import GradientStream, HAdam
from edge_sac.precision import Precision, Rounding
from edge_sac.squashed_gaussian import ClosedForm, Drawn, StepByStep
from edge_sac.target import KahanTarget, TargetState, TargetWeights, target_state


@dataclass(frozen=True)
class Batch:
    """Transitions on the learner's device; observations normalised, actions in [-1, 1], both in the stored dtype."""

    obs: Tensor  # [B, O]
    action: Tensor  # [B, A]
    reward: Tensor  # [B], fp32
    discount: Tensor  # [B], fp32: of what comes after next_obs, 0 where the episode terminated
    next_obs: Tensor  # [B, O]
    weight: Tensor  # [B], fp32: importance weights, 1 where draws are uniform

    @staticmethod
    def of(drawn: sampler.Batch, device: torch.device) -> Batch:
        """Return what a sampler drew; on a CPU in the sampler's own memory, good until it draws again."""
        return Batch(
            obs=torch.from_numpy(drawn.obs).to(device),
            action=torch.from_numpy(drawn.action).to(device),
            reward=torch.from_numpy(drawn.reward).to(device),
            discount=torch.from_numpy(drawn.discount).to(device),
            next_obs=torch.from_numpy(drawn.next_obs).to(device),
            weight=torch.from_numpy(drawn.weight).to(device),
        )


OPTIMISERS = ("critic", "actor", "alpha")
"""In the order of an update, and of the coefficients' rows."""
METRICS = ("critic_loss", "actor_loss", "q_mean", "log_prob")
NEXT, CHOSEN, TAKEN = 0, 1, 2
"""Rows of the critics' inputs: the next observation and the policy's action there, the observation and the policy's
action there, the observation and the action that was taken."""


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


@dataclass
class LastUpdate:
    """What the last update left on the device, from which its metrics are computed when somebody looks."""

    error: Tensor  # [2, B], q - target
    target: Tensor  # [B]
    log_prob: Tensor  # [B], of the policy's actions
    q: Tensor  # [2, B], of the policy's actions
    alpha: Tensor  # []

    def metrics(self) -> Tensor:
        """Return METRICS, [4]; NaN before the first update."""
        return torch.stack(
            (
                critic_loss(self.error),
                actor_loss(self.q, self.log_prob, self.alpha),
                (self.error + self.target).mean(),
                self.log_prob.mean(),
            )
        )


def actor_shape(obs_dim: int, action_dim: int, hidden: tuple[int, ...]) -> Mlp:
    """Return the actor's network: from an observation [O] to means and raw log-deviations [2 A]."""
    return Mlp(1, (obs_dim, *hidden, 2 * action_dim))


def critic_shape(obs_dim: int, action_dim: int, hidden: tuple[int, ...], *, normalised: bool = False) -> Mlp:
    """Return the critics' network: two at a time, from an observation and an action [O + A] to a value."""
    kind = NormalisedMlp if normalised else Mlp
    return kind(2, (obs_dim + action_dim, *hidden, 1))


def policy_weights(actor: Mlp, theta: Tensor) -> dict[str, NDArray[np.float32]]:
    """Return the actor's flat parameters by the policy graph's names: `w0` [I, O], `b0` [O], and so on."""
    weights: dict[str, NDArray[np.float32]] = {}
    for layer, (weight, bias) in enumerate(actor.views(theta)):
        weights[f"w{layer}"] = weight[0].float().cpu().numpy()
        weights[f"b{layer}"] = bias[0, 0].float().cpu().numpy()
    return weights


@dataclass(frozen=True)
class _Passes:
    """Memory of the forward and backward passes, in the product's compute dtype."""

    inputs: Tensor  # [3, B, O + A], by NEXT, CHOSEN and TAKEN
    noise: Tensor  # [2, B, A], fp32, for NEXT and CHOSEN
    actor: list[Tensor]  # each layer's output for NEXT and CHOSEN, [1, 2 B, width]
    critic: list[Tensor]  # each layer's output, [2, B, width]
    spare: list[Tensor]  # the target's outputs, then gradients, [2, B, width]
    seed: Tensor  # [2, B, 1]
    grad_action: Tensor  # [2, B, A]

    @staticmethod
    def of(actor: Mlp, critic: Mlp, batch: int, dtype: torch.dtype, device: torch.device) -> _Passes:
        action_dim = actor.sizes[-1] // 2
        return _Passes(
            inputs=torch.zeros(3, batch, critic.sizes[0], dtype=dtype, device=device),
            noise=torch.zeros(2, batch, action_dim, device=device),
            actor=actor.outputs(2 * batch, dtype, device),
            critic=critic.outputs(batch, dtype, device),
            spare=Mlp.outputs(critic, batch, dtype, device),
            seed=torch.zeros(2, batch, 1, dtype=dtype, device=device),
            grad_action=torch.zeros(2, batch, action_dim, dtype=dtype, device=device),
        )


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
        hidden = tuple(config.hidden)
        self.actor = actor_shape(obs_dim, action_dim, hidden)
        self.critic = critic_shape(obs_dim, action_dim, hidden, normalised=config.critic_norm)
        streams = np.random.SeedSequence(seed).generate_state(2, np.uint64) >> np.uint64(1)
        initial = torch.Generator().manual_seed(int(streams[0]))
        psi = self._initialised(self.critic, initial)
        theta = self._initialised(self.actor, initial)
        log_alpha = torch.zeros(ALIGN, dtype=precision.dtype, device=device)
        log_alpha[0] = math.log(config.initial_alpha)
        self.target = target_state(precision.target, psi)
        self.rates = (config.critic_lr, config.actor_lr, config.alpha_lr)
        self.coefficients = Coefficients(
            self.rates,
            LossScale(device, enabled=precision.loss_scaling, count=len(OPTIMISERS)),
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            hypot=precision.hadam,
            fused=precision.plain,
        )
        self.critic_optim = self._optimiser("critic", psi, precision.rounding, self.target)
        self.actor_optim = self._optimiser("actor", theta, precision.actor_rounding)
        self.alpha_optim = self._optimiser("alpha", log_alpha, precision.rounding)
        self.generator = torch.Generator(device=device).manual_seed(int(streams[1]))
        self._passes = _Passes.of(self.actor, self.critic, config.batch, path.compute, device)
        largest_output = 2 * config.batch * max(*hidden, 2 * action_dim)
        largest_layer = max(self.actor.largest_layer, self.critic.largest_layer)
        self._product = Product(path, device, largest_layer, largest_output)
        self._theta, self._psi = FlatWeights(self.actor, theta), FlatWeights(self.critic, psi)
        self._target_psi = TargetWeights(self.critic, self.target)
        self._theta_gradient = self._gradient(self.actor, self.actor_optim)
        self._psi_gradient = self._gradient(self.critic, self.critic_optim)
        batch = torch.full((config.batch,), torch.nan, device=device)
        self.last = LastUpdate(batch.expand(2, -1), batch, batch, batch.expand(2, -1), batch[0])

    def _initialised(self, mlp: Mlp, generator: torch.Generator) -> Tensor:
        flat = torch.empty(mlp.size, dtype=self.precision.dtype, device=self.device)
        mlp.initialise(flat, generator)
        return flat

    def _optimiser(
        self, name: str, flat: Tensor, rounding: Rounding, target: TargetState | None = None
    ) -> HAdam | Adam:
        chosen, index = self.precision, OPTIMISERS.index(name)
        whole = chosen.gradients == "whole" or name == "alpha"
        if chosen.plain:
            return Adam(flat, self.coefficients, index, self.rates[index], whole_gradient=whole)
        return HAdam(
            flat,
            self.coefficients,
            index,
            rounding=rounding,
            moments=chosen.moments,
            whole_gradient=whole,
            target=target,
        )

    def _gradient(self, mlp: Mlp, optim: HAdam | Adam) -> Gradient:
        if optim.grad is None:
            return GradientStream(mlp, optim, self._product)
        return GradientBuffer(mlp, optim.grad, self._product)

    @property
    def alpha(self) -> Tensor:
        """Return the temperature, [] in fp32."""
        return self.alpha_optim.theta[0].float().exp()

    @property
    def td_error(self) -> Tensor:
        """Return how far the critics were from the last batch's targets, [B] in fp32: the mean of both sizes."""
        return self.last.error.abs().mean(dim=0)

    @torch.no_grad()
    def update(self, batch: Batch) -> None:
        """Take one gradient step on each network from one batch of the configured size."""
        self._load(batch)
        self.coefficients.begin()
        drawn, alpha = self._draw(), self.alpha
        self._update_critic(batch, drawn.log_prob[NEXT], alpha)
        self._update_actor(drawn, alpha)
        self._update_alpha(drawn.log_prob[CHOSEN], alpha)
        self.coefficients.end()
        self.updates += 1
        if self.updates % self.config.target_period == 0:
            self.target.follow(self.critic_optim.theta, self.config.tau)

    def _load(self, batch: Batch) -> None:
        inputs, width = self._passes.inputs, self.obs_dim
        inputs[NEXT, :, :width].copy_(batch.next_obs)
        inputs[CHOSEN:, :, :width].copy_(batch.obs)
        inputs[TAKEN, :, width:].copy_(batch.action)

    def _draw(self) -> Drawn:
        """Return what the policy does at both observations, and make it the critics' input."""
        memory, width = self._passes, self.obs_dim
        obs = memory.inputs[: CHOSEN + 1, :, :width]
        output = self.actor.forward(obs.flatten(0, 1)[None], self._theta, self._product, memory.actor)
        torch.randn(memory.noise.shape, generator=self.generator, device=self.device, out=memory.noise)
        fixes, dtype = self.precision, self.precision.dtype
        output, noise = output.view(2, -1, 2 * self.action_dim).to(dtype), memory.noise.to(dtype)
        drawn: Drawn
        if fixes.normal_fix == fixes.softplus_fix == (dtype in (torch.float16, torch.bfloat16)):
            drawn = ClosedForm(output, noise)
        else:
            drawn = StepByStep(output, noise, normal_fix=fixes.normal_fix, softplus_fix=fixes.softplus_fix)
        memory.inputs[: CHOSEN + 1, :, width:].copy_(drawn.action)
        return drawn

    def _update_critic(self, batch: Batch, next_log_prob: Tensor, alpha: Tensor) -> None:
        memory, optim, product = self._passes, self.critic_optim, self._product
        x = memory.inputs[TAKEN:]
        next_q = self.critic.forward(memory.inputs[: NEXT + 1], self._target_psi, product, memory.spare)
        target = soft_target(batch.reward, batch.discount, next_q[..., 0], next_log_prob, alpha)
        q = self.critic.forward(x, self._psi, product, memory.critic)
        error = q[..., 0] - target
        seed = self._seed(critic_gradient(error, batch.weight), optim)
        self.critic.backward(seed, x, memory.critic, self._psi, product, self._psi_gradient, memory.spare)
        if optim.grad is not None:
            optim.step()
        self.last.error, self.last.target = error, target

    def _update_actor(self, drawn: Drawn, alpha: Tensor) -> None:
        memory, optim, product = self._passes, self.actor_optim, self._product
        chosen = memory.inputs[CHOSEN : CHOSEN + 1]
        q = self.critic.forward(chosen, self._psi, product, memory.critic)
        seed = self._seed(actor_gradient(q[..., 0]), optim)
        self.critic.input_gradient(seed, memory.critic, self._psi, product, memory.spare, memory.grad_action)
        batch = len(memory.seed[0])
        grad_log_prob = alpha * optim.row.scale / batch
        grad_action = memory.grad_action.sum(dim=0).to(self.precision.dtype)
        grad_output = drawn.gradient(CHOSEN, grad_action, grad_log_prob)[None].to(product.compute)
        saved = [y[:, batch:] for y in memory.actor]
        spare = [y[:1] for y in memory.spare]
        x = chosen[..., : self.obs_dim]
        self.actor.backward(grad_output, x, saved, self._theta, product, self._theta_gradient, spare)
        if optim.grad is not None:
            optim.step()
        self.last.q, self.last.log_prob, self.last.alpha = q[..., 0], drawn.log_prob[CHOSEN], alpha

    def _update_alpha(self, log_prob: Tensor, alpha: Tensor) -> None:
        optim = self.alpha_optim
        assert optim.grad is not None
        torch.mul(alpha_loss(log_prob, alpha, self.target_entropy), optim.row.scale, out=optim.grad[0])
        optim.step()

    def _seed(self, grad: Tensor, optim: HAdam | Adam) -> Tensor:
        """Return the derivative [2, B] times the loss scale, rounded to the stored dtype, as [2, B, 1]."""
        seed = self._passes.seed
        torch.mul(grad, optim.row.scale, out=seed[..., 0])
        return self._product.round_(seed)

    def policy_weights(self) -> dict[str, NDArray[np.float32]]:
        """Return the actor's weights by the policy graph's names."""
        return policy_weights(self.actor, self.actor_optim.theta)

    def read_metrics(self) -> Reading:
        """Return the last update's metrics: the one place where the host waits for the learner's tensors."""
        row = dict(zip(METRICS, self.last.metrics().tolist(), strict=True))
        row["alpha"] = float(self.alpha)
        row["entropy"] = -row["log_prob"]
        row["target_entropy"] = self.target_entropy
        scales = self.coefficients.loss_scale
        looked = zip(OPTIMISERS, scales.scale.tolist(), scales.skipped.tolist(), scales.exhausted.tolist(), strict=True)
        dead = ""
        for name, scale, skipped, exhausted in looked:
            row[f"{name}_scale"], row[f"skipped_{name}"] = scale, float(skipped)
            dead = dead or (name if exhausted else "")
        halvings, culprit = 0, ""
        if isinstance(self.target, KahanTarget):
            halvings = int(self.target.halvings)
            culprit = self.critic.name_at(int(self.target.culprit)) if halvings else ""
        return Reading(row, dead, halvings, culprit)

    def state(self) -> dict[str, Tensor]:
        """Return every tensor a checkpoint must hold; the generator's state is among them."""
        found = {"generator": self.generator.get_state(), "updates": torch.tensor(self.updates)}
        return found | self._learned()

    def _learned(self) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for optim, name in zip((self.critic_optim, self.actor_optim, self.alpha_optim), OPTIMISERS, strict=True):
            found |= {f"{name}.{key}": value for key, value in optim.state().items()}
        found |= {f"target.{name}": value for name, value in self.target.state().items()}
        return found | {f"coefficients.{name}": value for name, value in self.coefficients.state().items()}

    def restore(self, saved: Mapping[str, Tensor]) -> None:
        """Take up a saved state; raises KeyError or ValueError, with nothing changed, when it is another agent's."""
        for key, value in self.state().items():
            given = saved[key]
            if given.shape != value.shape or given.dtype != value.dtype:
                raise ValueError(
                    f"{key} is {list(given.shape)} of {given.dtype}; expected {list(value.shape)} of {value.dtype}"
                )
        for key, value in self._learned().items():
            value.copy_(saved[key])
        self.coefficients.loss_scale.revive()
        self.generator.set_state(saved["generator"].cpu())
        self.updates = int(saved["updates"])
