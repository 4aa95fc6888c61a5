"""hAdam in fp16 against Adam in float64, over long horizons, with the loss scale moving under it."""

import math

import numpy as np
import pytest
import torch

from edge_sac.coefficients import Coefficients
from edge_sac.flat import CHUNK
from edge_sac.loss_scale import LossScale
from edge_sac.optim import EPS_FLOOR, HAdam
from edge_sac.target import LagTarget

CPU = torch.device("cpu")
BETA1, BETA2 = 0.9, 0.999


class Adam64:
    """Adam as published, in float64."""

    def __init__(self, theta: np.ndarray, lr: float, eps: float) -> None:
        self.theta, self.lr, self.eps = theta.copy(), lr, eps
        self.m, self.v, self.t = np.zeros_like(theta), np.zeros_like(theta), 0

    def step(self, g: np.ndarray) -> None:
        self.t += 1
        self.m = BETA1 * self.m + (1 - BETA1) * g
        self.v = BETA2 * self.v + (1 - BETA2) * g * g
        m, v = self.m / (1 - BETA1**self.t), self.v / (1 - BETA2**self.t)
        self.theta -= self.lr * m / (np.sqrt(v) + self.eps)


class Alone:
    """An optimiser with coefficients of its own, stepped as an agent steps its three."""

    def __init__(self, theta: torch.Tensor, *, scaled: bool = True, **settings) -> None:
        shared = {key: settings.pop(key) for key in ("eps", "hypot") if key in settings}
        self.loss_scale = LossScale(CPU, enabled=scaled)
        self.coefficients = Coefficients((settings.pop("lr", 1e-3),), self.loss_scale, **shared)
        self.optim = HAdam(theta, self.coefficients, **settings)
        self.theta, self.grad = theta, self.optim.grad

    @property
    def m(self) -> torch.Tensor:
        return self.optim.moments.moments[0]

    @property
    def w(self) -> torch.Tensor:
        return self.optim.moments.moments[1]

    def step(self) -> None:
        self.coefficients.begin()
        self.optim.step()
        self.coefficients.end()

    def state(self) -> dict[str, torch.Tensor]:
        return self.optim.state() | self.coefficients.state()


def optimiser(theta: torch.Tensor, **settings) -> Alone:
    return Alone(theta, **settings)


def give(optim: Alone, gradient: np.ndarray) -> None:
    optim.grad.copy_(torch.from_numpy(gradient) * optim.loss_scale.scale.double())


@pytest.mark.parametrize("hypot", [True, False])
def test_fp32_path_equals_adam_in_float64_over_10000_steps(hypot):
    rng = np.random.default_rng(0)
    theta = torch.tensor(rng.normal(size=32), dtype=torch.float32)
    optim = optimiser(theta, scaled=False, hypot=hypot, rounding="nearest")
    twin = Adam64(theta.double().numpy(), 1e-3, 1e-8)
    for _ in range(10_000):
        g = rng.normal(0, 1e-2, 32)
        optim.grad.copy_(torch.from_numpy(g))
        optim.step()
        twin.step(optim.grad.double().numpy())
    # 10,000 fp32 roundings of theta (6e-8 near 1) add up like a random walk; each step is right to 1e-6 of 1e-3.
    assert np.abs(theta.double().numpy() - twin.theta).max() < 3e-5


def test_fp16_hadam_with_scaled_gradients_follows_adam_in_float64_over_10000_steps():
    rng = np.random.default_rng(1)
    theta = torch.tensor(rng.uniform(-1, 1, 128), dtype=torch.float16)
    start = theta.double().numpy()
    optim = optimiser(theta)
    twin = Adam64(start, 1e-3, 1e-8)
    size = 10.0 ** rng.uniform(-6, -2, 128)
    for step in range(10_000):
        g = size * (rng.normal(size=128) + 0.3 * math.sin(step / 300))
        give(optim, g)
        optim.step()
        twin.step(g)
    moved = np.abs(twin.theta - start)
    assert moved.mean() > 0.1
    error = np.abs(theta.double().numpy() - twin.theta)
    # w wanders by 1 % about its value (see below), and so do 10,000 steps of 1e-3; theta's own spacing is 2^-10.
    assert np.median(error) <= 0.01
    assert error.max() <= 0.05


def gaussian(rng, _):
    return rng.normal(size=256)


def constant(_, __):
    return np.ones(256)


def sparse(rng, _):
    return rng.normal(size=256) * (rng.random(256) < 0.01)


def falling(rng, step):
    return (0.1 + 0.9 * math.exp(-step / 1_000)) * (1 + 0.1 * rng.normal(size=256))


def w_ratios(update, gradients, steps: int = 6_000) -> np.ndarray:
    """Return w over its exact value [256] after `steps` of gradients of about 1."""
    rng = np.random.default_rng(2)
    w, v = np.zeros(256, np.float16), np.zeros(256)
    for step in range(steps):
        g = gradients(rng, step)
        w = update(w, g.astype(np.float16))
        v = BETA2 * v + (1 - BETA2) * g * g
    return w.astype(np.float64) / np.sqrt(v)


def test_w_evaluated_operation_by_operation_in_fp16_is_biased_low():
    """The form of the released code, every operation rounded: the reason for fp32 inside."""
    half = np.float16

    def op_by_op(w, g):
        decayed, fresh = half(math.sqrt(BETA2)) * w, half(math.sqrt(1 - BETA2)) * np.abs(g)
        large, small = np.maximum(decayed, fresh), np.minimum(decayed, fresh)
        ratio = small / (large + half(1e-7))
        return large * np.sqrt(half(1) + ratio * ratio)

    assert w_ratios(op_by_op, gaussian).mean() < 0.85


def test_w_stored_to_nearest_does_not_follow_gradients_that_fall():
    """fp32 inside alone is not enough: a decay of 5e-4 is a whole spacing or none."""

    def nearest(w, g):
        wide = w.astype(np.float32)
        return np.hypot(math.sqrt(BETA2) * wide, math.sqrt(1 - BETA2) * g.astype(np.float32)).astype(np.float16)

    assert w_ratios(nearest, falling).mean() > 2


@pytest.mark.parametrize("gradients", [gaussian, constant, sparse, falling])
def test_w_stored_by_the_optimiser_is_right_for_every_kind_of_gradient(gradients):
    state = optimiser(torch.zeros(256, dtype=torch.float16), scaled=False)

    def ours(_, g):
        state.grad.copy_(torch.from_numpy(g))
        state.step()
        return state.w.numpy()

    ratios = w_ratios(ours, gradients)
    # A dithered w wanders by a few of its spacings, 2^-10 each, over its memory of 1,000 steps.
    assert abs(ratios.mean() - 1) <= 0.01
    assert ratios.min() >= 0.93
    assert ratios.max() <= 1.07


@pytest.mark.parametrize("scale", [1e4, 19.0, 1.0])
def test_parameter_whose_gradient_dies_comes_to_rest(scale):
    rng = np.random.default_rng(7)
    theta = torch.zeros(64, dtype=torch.float16)
    optim = optimiser(theta, lr=3e-4)
    optim.loss_scale.scale.fill_(scale)
    for _ in range(500):
        give(optim, rng.normal(0, 1e-6, 64))
        optim.step()
    for _ in range(500):
        give(optim, np.zeros(64))
        optim.step()
    rested = theta.clone()
    for _ in range(5_000):
        give(optim, np.zeros(64))
        optim.step()
    assert not optim.m.any()
    # A momentum of k subnormal spacings needs some tens of steps to die: by 500 nearly all have.
    assert (theta.float() - rested.float()).abs().max() <= 2e-3


@pytest.mark.parametrize("gradient", [5.5e-3, 1.7e-4, 1e-5, 2e-6, 9.6e-7, 1e-7])
def test_small_gradients_leave_their_trace_in_w_on_average_over_elements(gradient):
    optim = optimiser(torch.zeros(8_192, dtype=torch.float16), scaled=False)
    optim.grad.fill_(gradient)
    optim.step()
    exact = math.sqrt(1 - BETA2) * float(optim.grad[0])
    assert bool(((optim.w.float() - exact).abs() <= 2.0**-24 + exact * 2.0**-10).all())
    # 8,192 dithered values of one spacing each: their mean is right to 2^-24 / sqrt(12 * 8192), three times over.
    assert float(optim.w.double().mean()) == pytest.approx(exact, abs=3 * 2.0**-24 / 313 + exact * 2.0**-14)


def test_small_gradients_vanish_from_a_stored_square():
    optim = optimiser(torch.zeros(8, dtype=torch.float16), scaled=False, hypot=False)
    optim.grad.fill_(5e-3)
    optim.step()
    assert float(optim.w[0]) == 0


def test_dead_unit_without_gradient_stays_where_it_is_instead_of_dividing_zero_by_zero():
    theta = torch.full((8,), 0.5, dtype=torch.float16)
    optim = optimiser(theta, scaled=False)
    for _ in range(3):
        optim.step()
    assert torch.equal(theta, torch.full((8,), 0.5, dtype=torch.float16))


@pytest.mark.parametrize("rounding", ["kahan", "stochastic", "nearest"])
def test_target_follows_what_is_stored_however_steps_are_rounded(rounding):
    rng = np.random.default_rng(10)
    theta = torch.tensor(rng.normal(size=64), dtype=torch.float16)
    start, target = theta.clone(), LagTarget(theta)
    optim = optimiser(theta, rounding=rounding, target=target)
    for _ in range(30):
        give(optim, rng.normal(0, 1e-3, 64))
        optim.step()
    moved = (theta.float() - start.float()).abs()
    assert float(moved.max()) > 2**-7
    assert ((-target.lag.float()) - (theta.float() - start.float())).abs().max() <= 2**-10 * moved.max()


@pytest.mark.parametrize("bad", [float("inf"), float("-inf"), float("nan")])
def test_non_finite_gradient_skips_the_step_and_halves_everything_scaled_at_once(bad):
    rng = np.random.default_rng(3)
    theta = torch.tensor(rng.normal(size=64), dtype=torch.float16)
    target = LagTarget(theta)
    optim = optimiser(theta, target=target)
    for _ in range(50):
        give(optim, rng.normal(0, 1e-3, 64))
        optim.step()
    before = {name: value.clone() for name, value in optim.state().items()}
    lag = target.lag.clone()
    give(optim, rng.normal(0, 1e-3, 64))
    optim.grad[17] = bad
    optim.step()
    for name in ("theta", "moments", "compensation", "powers"):
        assert torch.equal(optim.state()[name], before[name]), name
    assert torch.equal(target.lag, lag)
    assert float(optim.loss_scale.scale) == float(before["loss_scale.scale"]) / 2
    give(optim, np.zeros(64))
    optim.step()
    ratio = optim.w.float() / before["moments"][1].float()
    assert torch.allclose(ratio, torch.full((64,), 0.5 * math.sqrt(BETA2)), rtol=2**-10)


def test_skipped_steps_leave_moments_at_a_power_of_two_alone():
    """Below a power of two the spacing is half as wide: there a dithered value would not come back."""
    optim = optimiser(torch.zeros(256, dtype=torch.float16))
    optim.optim.moments.moments.fill_(0.125)
    # The second skip brings the moments to the scale that the first one halved, which is exact.
    for expected in (0.125, 0.0625):
        optim.grad.fill_(float("nan"))
        optim.step()
        assert bool((optim.optim.moments.moments == expected).all())


def test_change_of_scale_leaves_the_course_of_the_parameters_alone():
    """Skips and doublings must cancel in m / w: the same gradients, with the scale pushed about, end alike."""
    rng = np.random.default_rng(4)
    start = torch.tensor(rng.uniform(-1, 1, 64), dtype=torch.float16)
    calm, pushed = optimiser(start.clone()), optimiser(start.clone())
    for step in range(3_000):
        g = rng.normal(0, 1e-3, 64) + 3e-4
        give(calm, g)
        calm.step()
        if step % 400 == 150:
            pushed.grad.fill_(float("nan"))
            pushed.step()
        if step % 400 == 350 and step < 2_800:
            pushed.loss_scale.scale.mul_(2)
        give(pushed, g)
        pushed.step()
    assert int(pushed.loss_scale.skipped) == 8
    assert float(pushed.loss_scale.scale) == float(calm.loss_scale.scale) / 2
    difference = (pushed.theta.float() - calm.theta.float()).abs()
    # Powers of two are exact; what is left is the dither, which wanders by 1 % of w, over 3,000 steps of up to 1e-3.
    assert float(difference.max()) <= 1e-2
    assert float((calm.theta.float() - start.float()).abs().mean()) > 0.5


def test_compensated_parameters_move_where_plain_fp16_ones_stand_still():
    start = torch.full((8,), 1.5, dtype=torch.float16)
    compensated, plain = optimiser(start.clone(), lr=1e-4), optimiser(start.clone(), lr=1e-4, rounding="nearest")
    for _ in range(1_000):
        for optim in (compensated, plain):
            give(optim, np.full(8, 1e-3))
            optim.step()
    assert torch.equal(plain.theta, start)
    assert torch.allclose(compensated.theta.float(), torch.full((8,), 1.4), atol=2**-10)
    assert bool((compensated.state()["compensation"] != 0).all())


def test_chunks_make_no_difference_to_any_element():
    rng = np.random.default_rng(5)
    length = 2 * CHUNK + 40
    whole = optimiser(torch.tensor(rng.normal(size=length), dtype=torch.float16))
    tail = slice(2 * CHUNK, length)
    part = optimiser(whole.theta[tail].clone())
    for _ in range(5):
        g = rng.normal(0, 1e-3, length)
        give(whole, g)
        give(part, g[tail])
        whole.step()
        part.step()
    assert torch.equal(whole.theta[tail], part.theta)
    assert torch.equal(whole.w[tail], part.w)


@pytest.mark.parametrize("scale", [1e4, 64.0, 1.0])
@pytest.mark.parametrize("hypot", [True, False])
def test_eps_is_adams_own_whatever_the_scale(scale, hypot):
    theta = torch.zeros(16, dtype=torch.float32)
    optim = optimiser(theta, lr=1e-2, eps=1e-6, hypot=hypot, rounding="nearest")
    twin = Adam64(np.zeros(16), 1e-2, 1e-6)
    optim.loss_scale.scale.fill_(scale)
    rng = np.random.default_rng(8)
    for step in range(300):
        if step == 150:
            optim.loss_scale.scale.mul_(0.5)
        g = 1e-6 * (1 + 0.2 * rng.normal(size=16))
        give(optim, g)
        optim.step()
        twin.step(g)
    # At |g| = eps each step is half of lr: any other eps, or one that does not follow the scale, shows at once.
    assert theta.double().numpy() == pytest.approx(twin.theta, rel=2e-3)
    assert twin.theta.mean() == pytest.approx(-1.5, rel=0.05)


@pytest.mark.parametrize(("dtype", "eps"), [(torch.float16, EPS_FLOOR), (torch.float32, 1e-8)])
def test_eps_is_no_smaller_than_the_smallest_moment_there_can_be(dtype, eps):
    """At scale 1: dithered to a spacing and to none, m / w must not make a step beyond Adam's 3.16 lr."""
    theta = torch.zeros(8, dtype=dtype)
    optim = optimiser(theta, rounding="nearest")
    optim.loss_scale.scale.fill_(1)
    optim.coefficients.moment_scale.fill_(1)
    optim.coefficients.powers.zero_()  # long after the start
    optim.m.fill_(2.0**-24)
    optim.step()
    assert theta.float().numpy() == pytest.approx(-1e-3 * BETA1 * 2.0**-24 / eps, rel=2**-10)


def test_step_is_taken_from_the_moments_as_computed():
    """A gradient whose moments round badly when stored: the step must not show it."""
    theta = torch.zeros(8, dtype=torch.float32)
    wide, narrow = optimiser(theta.clone(), scaled=False), optimiser(theta.half(), scaled=False)
    for optim in (wide, narrow):
        optim.grad.fill_(2.0**-20)
        optim.step()
    assert narrow.theta.float().numpy() == pytest.approx(wide.theta.numpy(), rel=2**-9 + EPS_FLOOR / (2**-20 * 0.03))


@pytest.mark.parametrize(("peak", "grows"), [(20_000.0, True), (40_000.0, False)])
@pytest.mark.parametrize("which", ["m", "w"])
def test_scale_grows_only_while_both_moments_have_room(which, peak, grows):
    optim = optimiser(torch.zeros(8, dtype=torch.float16))
    getattr(optim, which).fill_(peak)
    optim.loss_scale.finite_streak.fill_(10_000)
    optim.step()
    assert (float(optim.loss_scale.scale) > 1e4) == grows


def test_stored_square_needs_room_for_four_times_itself_and_says_when_it_is_lost():
    optim = optimiser(torch.zeros(8, dtype=torch.float16), hypot=False)
    optim.w.fill_(20_000)
    optim.loss_scale.finite_streak.fill_(10_000)
    optim.step()
    assert float(optim.loss_scale.scale) == 1e4
    optim.grad.fill_(30_000)
    optim.step()
    assert torch.isinf(optim.w).all()
    assert bool(optim.loss_scale.exhausted)


@pytest.mark.parametrize(
    ("rounding", "own"), [("kahan", {"compensation"}), ("stochastic", {"rounding"}), ("nearest", set())]
)
def test_skip_right_before_saving_is_restored_with_its_scale(rounding, own):
    rng = np.random.default_rng(9)
    optim = optimiser(torch.zeros(32, dtype=torch.float16), rounding=rounding)
    for _ in range(20):
        give(optim, rng.normal(0, 1e-3, 32))
        optim.step()
    optim.grad.fill_(float("nan"))
    optim.step()
    expected = {"theta", "moments", "moment_scale", "powers", "dither"} | own
    expected |= {f"loss_scale.{n}" for n in ("scale", "finite_streak", "skip_streak", "skipped", "exhausted")}
    assert set(optim.state()) == expected
    assert float(optim.coefficients.moment_scale) == 1e4
    assert float(optim.loss_scale.scale) == 5e3


def test_target_is_told_every_change_of_every_chunk():
    rng = np.random.default_rng(6)
    theta = torch.tensor(rng.normal(size=CHUNK + 100), dtype=torch.float16)
    start = theta.clone()
    target = LagTarget(theta)
    optim = optimiser(theta, target=target)
    for _ in range(20):
        give(optim, rng.normal(0, 1e-3, CHUNK + 100))
        optim.step()
    assert not torch.equal(theta, start)
    # The target never followed: it must still stand where theta began, to a spacing (2^-9 below 4).
    assert (target.form(target.codes, torch.empty_like(theta)).float() - start.float()).abs().max() <= 2**-8


@pytest.mark.parametrize("moments", ["full", "8bit"])
@pytest.mark.parametrize("bad", [7e4, 1e9, float("inf"), float("nan")])
def test_part_beyond_what_its_moments_can_hold_is_skipped_alone_and_halves_the_scale(moments, bad):
    """A part comes in fp32: what fp16 would call infinite must not reach the moments as a number."""
    theta = torch.ones(64, dtype=torch.float16)
    optim = optimiser(theta, moments=moments, whole_gradient=False)
    optim.coefficients.begin()
    optim.optim.begin()
    poisoned = torch.ones(32)
    poisoned[5] = bad
    optim.optim.advance(slice(32, 64), poisoned)
    optim.optim.advance(slice(0, 32), torch.ones(32))
    optim.coefficients.end()
    assert torch.equal(theta[32:], torch.ones(32, dtype=torch.float16))
    assert bool((theta[:32] < 1).all())
    assert float(optim.loss_scale.scale) == 5e3
    for value in optim.state().values():
        assert torch.isfinite(value.double()).all()
    assert not bool(optim.loss_scale.exhausted.any())
