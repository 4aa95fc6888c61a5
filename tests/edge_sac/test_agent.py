"""One whole update: against autograd, without a look at the host, and in every precision preset."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from edge_sac.agent import METRICS, OPTIMISERS, Agent, Batch
from edge_sac.config import AgentConfig
from edge_sac.errors import ConfigError
from edge_sac.half_matmul import MatmulPath
from edge_sac.precision import PRESETS, Precision, precision
from edge_sac.squashed_gaussian import sample

CPU = torch.device("cpu")
OBS, ACTION, SIZE = 5, 2, 32
LEANEST = {"rounding": "stochastic", "moments": "8bit", "gradients": "in-place"}


def agent(chosen: Precision | str = "fp16", **config) -> Agent:
    if isinstance(chosen, str):
        chosen = precision(chosen)
    settings = AgentConfig(**{"hidden": (16, 16), "batch": SIZE} | config)
    return Agent(OBS, ACTION, settings, chosen, MatmulPath(chosen.dtype, torch.float32, "test"), CPU, seed=0)


def batch(dtype=torch.float16, seed: int = 0) -> Batch:
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.from_numpy(rng.normal(size=shape)).to(dtype)

    return Batch(
        obs=draw(SIZE, OBS),
        action=torch.tanh(draw(SIZE, ACTION)),
        reward=torch.from_numpy(rng.normal(size=SIZE)).float(),
        discount=torch.from_numpy(np.where(rng.random(SIZE) < 0.1, 0, 0.99)).float(),
        next_obs=draw(SIZE, OBS),
        weight=torch.ones(SIZE),
    )


def optimisers(ours: Agent) -> dict:
    return {"critic": ours.critic_optim, "actor": ours.actor_optim, "alpha": ours.alpha_optim}


def forward(flat: torch.Tensor, shape, x: torch.Tensor) -> torch.Tensor:
    layers = shape.views(flat)
    y = x.expand(shape.copies, -1, -1)
    for number, (weight, bias) in enumerate(layers):
        y = y @ weight + bias
        y = y.relu() if number + 1 < len(layers) else y
    return y


def draw_action(output: torch.Tensor, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    mean, raw = output.chunk(2, dim=-1)
    std = (-5 + 3.5 * (torch.tanh(raw) + 1)).exp()
    u = mean + std * noise
    normal = torch.distributions.Normal(mean, std).log_prob(u)
    return torch.tanh(u), (normal - torch.log(1 - torch.tanh(u) ** 2)).sum(dim=-1)


def test_critic_and_actor_gradients_equal_autograd_of_the_losses_as_written_in_the_paper():
    ours, data = agent("fp32", target_period=1, tau=0.2), batch(torch.float32)
    for seed in range(1, 6):
        ours.update(batch(torch.float32, seed))
    # From here T differs from psi, and alpha from where it began.
    target_psi = ours.target.value.clone()
    assert (target_psi - ours.critic_optim.theta).abs().max() > 1e-4
    generator = torch.Generator()
    generator.set_state(ours.generator.get_state())
    next_noise, noise = torch.randn(2, SIZE, ACTION, generator=generator)
    psi = ours.critic_optim.theta.clone().requires_grad_()
    theta = ours.actor_optim.theta.clone().requires_grad_()
    alpha = float(ours.alpha)
    with torch.no_grad():
        next_action, next_log_prob = draw_action(forward(theta, ours.actor, data.next_obs[None])[0], next_noise)
        next_q = forward(target_psi, ours.critic, torch.cat((data.next_obs, next_action), -1)[None])[..., 0].amin(0)
        y = data.reward + data.discount * (next_q - alpha * next_log_prob)
    q = forward(psi, ours.critic, torch.cat((data.obs, data.action), -1)[None])[..., 0]
    (by_psi,) = torch.autograd.grad(((q - y) ** 2).mean(1).sum(), psi)
    ours.update(data)
    # The log-probability differs in form: 1 - tanh^2 loses digits in fp32, softplus does not.
    assert torch.allclose(ours.critic_optim.grad, by_psi, rtol=1e-3, atol=1e-5)
    moved_psi = ours.critic_optim.theta
    action, log_prob = draw_action(forward(theta, ours.actor, data.obs[None])[0], noise)
    q = forward(moved_psi, ours.critic, torch.cat((data.obs, action), -1)[None])[..., 0].amin(0)
    (by_theta,) = torch.autograd.grad((alpha * log_prob - q).mean(), theta)
    assert torch.allclose(ours.actor_optim.grad, by_theta, rtol=1e-3, atol=1e-5)
    expected = alpha * float((-log_prob.detach() + ACTION).mean())
    assert float(ours.alpha_optim.grad[0]) == pytest.approx(expected, rel=1e-3)


def test_each_network_is_seeded_with_its_own_loss_scale():
    plain, scaled = agent("fp16"), agent("fp16")
    scales = {"critic": 2.0**12, "actor": 2.0**9, "alpha": 2.0**6}
    for name, optim in optimisers(scaled).items():
        optim.row.scale.fill_(scales[name])
    plain.update(batch())
    scaled.update(batch())
    for name, optim in optimisers(scaled).items():
        ours, theirs = optim.grad.float() / scales[name], optimisers(plain)[name].grad.float() / 1e4
        # Both are rounded to fp16, the smaller ones of the smaller scale to its subnormals.
        assert (ours - theirs).norm() <= 0.01 * theirs.norm(), name


@pytest.mark.parametrize("fix", ["hadam", "softplus", "normal"])
def test_fix_that_is_switched_off_is_off_in_the_update(fix, monkeypatch):
    seen = []

    def spy(*given, **switches):
        seen.append(switches)
        return sample(*given, **switches)

    monkeypatch.setattr("edge_sac.squashed_gaussian.sample", spy)
    ours = agent(f"fp16-minus-{fix}")
    ours.update(batch())
    expected = [] if fix == "hadam" else [{"normal_fix": fix != "normal", "softplus_fix": fix != "softplus"}]
    assert seen == expected
    assert ours.coefficients.hypot == (fix != "hadam")


def test_weights_of_the_draw_reach_the_critics_step():
    plain, weighted, data = agent("fp32"), agent("fp32"), batch(torch.float32)
    plain.update(data)
    weighted.update(replace(data, weight=torch.full((SIZE,), 0.5)))
    assert torch.allclose(weighted.critic_optim.grad, 0.5 * plain.critic_optim.grad, rtol=1e-5)


def test_target_moves_by_tau_once_a_period():
    ours = agent("fp32", target_period=2, tau=0.01)
    start = ours.target.value.clone()
    for seed in range(2):
        ours.update(batch(torch.float32, seed))
    exact = start + 0.01 * (ours.critic_optim.theta - start)
    assert torch.allclose(ours.target.value, exact, rtol=0, atol=1e-7)


def test_actor_takes_no_step_against_a_critic_that_is_not_finite():
    ours = agent("fp16")
    before = ours.actor_optim.theta.clone()
    ours.critic.views(ours.critic_optim.theta)[1][0].fill_(float("nan"))
    ours.update(batch())
    assert torch.equal(ours.actor_optim.theta, before)
    assert ours.read_metrics().row["skipped_actor"] == 1


def test_actor_takes_no_step_when_only_the_value_and_not_its_slope_is_infinite():
    """The last bias is no part of a gradient: the loss must make the step one to skip."""
    ours = agent("fp16")
    before = ours.actor_optim.theta.clone()
    ours.critic.views(ours.critic_optim.theta)[-1][1].fill_(float("inf"))
    ours.update(batch())
    assert torch.equal(ours.actor_optim.theta, before)
    assert ours.read_metrics().row["skipped_actor"] == 1


def test_restored_learner_that_had_given_up_may_try_again():
    ours, data = agent("fp16"), batch()
    data.reward[3] = float("nan")
    for _ in range(20):
        ours.update(data)
    again = agent("fp16")
    again.restore(ours.state())
    assert again.read_metrics().dead == ""


@pytest.mark.parametrize("change", ["shape", "dtype", "missing"])
def test_state_of_another_agent_is_refused_and_changes_nothing(change):
    ours, other = agent("fp16"), agent("fp16", hidden=(8, 8)) if change == "shape" else agent("fp32")
    state = other.state()
    if change == "missing":
        state = {key: value for key, value in ours.state().items() if key != "critic.theta"}
    before = ours.critic_optim.theta.clone()
    with pytest.raises((KeyError, ValueError), match="critic"):
        ours.restore(state)
    assert torch.equal(ours.critic_optim.theta, before)


def test_fp16_gradients_are_the_scaled_fp32_ones_to_half_precision():
    half, single = agent("fp16"), agent("fp32")
    # The same parameters: those that fp16 can hold.
    for ours, theirs in ((single.critic_optim, half.critic_optim), (single.actor_optim, half.actor_optim)):
        ours.theta.copy_(theirs.theta)
    single.alpha_optim.theta.copy_(half.alpha_optim.theta)
    single.target.value.copy_(half.critic_optim.theta)
    half.update(batch())
    data = batch()
    single.update(replace(data, obs=data.obs.float(), action=data.action.float(), next_obs=data.next_obs.float()))
    for ours, theirs in ((half.critic_optim, single.critic_optim), (half.actor_optim, single.actor_optim)):
        unscaled = ours.grad.float() / 1e4
        similarity = torch.nn.functional.cosine_similarity(unscaled, theirs.grad, dim=0)
        # Three layers of activations and gradients rounded to 2^-11 each.
        assert float(similarity) > 0.9995
        assert float(unscaled.norm() / theirs.grad.norm()) == pytest.approx(1, abs=0.01)


class NoLook(TorchDispatchMode):
    """Fails on any operation that copies a value of a tensor to the host."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func)
        assert "_local_scalar_dense" not in name, f"{name} looks at a tensor's value"
        assert "nonzero" not in name, f"{name} has a shape that depends on a tensor's values"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("name", "options"), [("fp16", {}), ("fp16", LEANEST), ("fp16", {"target": "kahan"}), ("fp32", {})]
)
def test_update_never_looks_at_a_value_on_the_host(name, options):
    ours = agent(precision(name, **options), target_period=1)
    data = batch(ours.precision.dtype)
    with NoLook():
        ours.update(data)
    with pytest.raises(AssertionError, match="looks at a tensor"), NoLook():
        float(ours.alpha)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_takes_updates_and_moves_what_it_can(name):
    ours = agent(name)
    before = ours.critic_optim.theta.clone()
    for seed in range(5):
        ours.update(batch(ours.precision.dtype, seed))
    assert not torch.equal(ours.critic_optim.theta, before)
    assert set(METRICS) <= set(ours.read_metrics().row)


@pytest.mark.parametrize("gradients", ["whole", "in-place"])
def test_compensation_is_alive_in_critics_actor_and_temperature(gradients):
    ours = agent(precision("fp16", gradients=gradients))
    for seed in range(5):
        ours.update(batch(seed=seed))
    for name, optim in optimisers(ours).items():
        compensation = optim.state()["compensation"]
        assert bool((compensation != 0).any()), name
    assert "compensation" not in agent("fp32").critic_optim.state()


def test_one_nan_reward_skips_the_critic_step_and_leaves_every_parameter_finite():
    ours, data = agent("fp16"), batch()
    before = ours.critic_optim.theta.clone()
    data.reward[3] = float("nan")
    ours.update(data)
    assert torch.equal(ours.critic_optim.theta, before)
    reading = ours.read_metrics()
    assert reading.row["skipped_critic"] == 1
    assert reading.dead == ""
    for name, value in ours.state().items():
        assert torch.isfinite(value.double()).all(), name


def test_learner_whose_every_step_is_skipped_says_which_it_is():
    ours, data = agent("fp16"), batch()
    data.reward[3] = float("nan")
    for _ in range(20):
        ours.update(data)
    assert ours.read_metrics().dead == "critic"


@pytest.mark.parametrize("given_up", [("critic", "actor", "alpha"), ("critic", "alpha"), ("actor", "alpha")])
def test_first_optimiser_that_gave_up_is_the_one_named(given_up):
    ours = agent("fp16")
    for name in given_up:
        ours.coefficients.loss_scale.exhausted[OPTIMISERS.index(name)] = True
    assert ours.read_metrics().dead == given_up[0]


def test_kahan_target_names_the_weight_that_made_it_halve_its_scale():
    ours = agent(precision("fp16", target="kahan"), target_period=1)
    weight = ours.critic.views(ours.critic_optim.theta)[1][0]
    weight[1, 2, 3] = 6.9
    for seed in range(3):
        ours.update(batch(seed=seed))
    reading = ours.read_metrics()
    assert reading.halvings >= 1
    assert reading.culprit == "w1[1, 2, 3]"


def test_target_follows_every_second_update_as_configured():
    ours = agent("fp32", target_period=2)
    start = ours.target.value.clone()
    ours.update(batch(torch.float32))
    assert torch.equal(ours.target.value, start)
    ours.update(batch(torch.float32))
    assert not torch.equal(ours.target.value, start)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {"target": target}) for name in ("fp16", "fp32") for target in ("lag", "kahan", "plain")),
        *(("fp16", {key: value}) for key, value in LEANEST.items()),
        ("fp16", LEANEST),
        ("fp32", {"gradients": "in-place"}),
    ],
)
def test_restored_agent_goes_on_bit_for_bit(name, options):
    chosen = precision(name, **options)
    one, two = agent(chosen), agent(chosen)
    for seed in range(7):
        one.update(batch(chosen.dtype, seed))
    two.restore({key: value.clone() for key, value in one.state().items()})
    for seed in range(7, 12):
        one.update(batch(chosen.dtype, seed))
        two.update(batch(chosen.dtype, seed))
    assert two.updates == 12
    for key, value in one.state().items():
        assert torch.equal(value, two.state()[key]), key


def learner_bytes(chosen: Precision) -> int:
    """Return the bytes of parameters, gradients, moments, compensations and targets; the passes come on top."""
    ours = agent(chosen, hidden=(64, 64))
    optims = (ours.critic_optim, ours.actor_optim)
    gradients = [optim.grad for optim in optims if optim.grad is not None]
    held = [*gradients, *ours.target.state().values(), *(t for optim in optims for t in optim.state().values())]
    return sum(t.nbytes for t in held if t.ndim)


@pytest.mark.parametrize(("options", "most"), [({}, 0.61), (LEANEST, 0.45)])
def test_learner_state_of_fp16_is_small_beside_that_of_fp32(options, most):
    assert learner_bytes(precision("fp16", **options)) / learner_bytes(precision("fp32")) <= most


def test_unknown_precision_and_target_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"'fp8'.*fp16"):
        precision("fp8")
    with pytest.raises(ConfigError, match=r"'ema'.*lag, kahan, plain"):
        precision("fp16", target="ema")
