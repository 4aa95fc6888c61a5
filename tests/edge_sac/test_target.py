"""The three target codes against a float64 moving average of parameters that move like a learner's."""

import numpy as np
import pytest
import torch

from edge_sac.target import KAHAN_SCALE, KahanTarget, LagTarget, PlainTarget, TargetState, target_state

TAU = 0.005


def follow(kind: str, steps: int, period: int, size: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the target, its float64 twin and psi after `steps` random-walk steps of a learner's size."""
    rng = np.random.default_rng(1)
    psi = torch.tensor(size * rng.uniform(-1, 1, 256), dtype=torch.float16)
    target: TargetState = target_state(kind, psi)  # type: ignore[arg-type]
    twin = psi.double().numpy()
    drift = rng.choice([-1.0, 1.0], 256)
    for step in range(1, steps + 1):
        before = psi.float()
        psi.copy_(before + torch.tensor(drift * 5e-4 + rng.normal(0, 1e-3, 256), dtype=torch.float32))
        target.moved(slice(0, 256), psi.float() - before)
        if step % period == 0:
            target.follow(psi, TAU)
            twin += TAU * (psi.double().numpy() - twin)
        if step % 500 == 0:
            drift = rng.choice([-1.0, 1.0], 256)
    return target.form(target.codes, torch.empty_like(psi)).double().numpy(), twin, psi.double().numpy()


@pytest.mark.parametrize("period", [1, 2])
@pytest.mark.parametrize("kind", ["lag", "kahan"])
def test_target_stays_within_two_percent_of_the_lag_over_20000_updates(kind, period):
    target, twin, psi = follow(kind, 20_000, period)
    lag = np.sqrt(np.mean((twin - psi) ** 2))
    error = np.sqrt(np.mean((target - twin) ** 2))
    spacing = 2.0**-11  # T is formed in fp16, near 1
    assert error <= 0.02 * lag + spacing


def test_plain_target_in_fp16_loses_most_of_its_steps():
    target, twin, psi = follow("plain", 10_000, 1)
    lag = np.sqrt(np.mean((twin - psi) ** 2))
    assert np.sqrt(np.mean((target - twin) ** 2)) > 0.25 * lag


def average(kind: type[KahanTarget] | type[PlainTarget] | type[LagTarget], start: float, end: float) -> float:
    psi = torch.tensor([start], dtype=torch.float16)
    target = kind(psi)
    target.moved(slice(0, 1), torch.tensor([end], dtype=torch.float16).float() - psi.float())
    psi.fill_(end)
    for _ in range(2_000):
        target.follow(psi, TAU)
    return float(target.form(target.codes, torch.empty_like(psi)))


def test_average_from_0_5_to_0_51_arrives_unless_it_is_plain():
    exact = 0.51 + (0.5 - 0.51) * (1 - TAU) ** 2_000
    assert average(PlainTarget, 0.5, 0.51) == 0.5
    # Half an fp16 spacing at 0.5, 2^-12, and as much for psi = fp16(0.51) itself.
    assert average(KahanTarget, 0.5, 0.51) == pytest.approx(exact, abs=2**-11)
    assert average(LagTarget, 0.5, 0.51) == pytest.approx(exact, abs=2**-11)


def test_average_of_tiny_weights_needs_the_kahan_scale_and_the_lag_code_stops_at_its_floor():
    exact = 3e-5 + (2e-5 - 3e-5) * (1 - TAU) ** 2_000
    # fp16 spacing below 6.1e-5 is 6e-8.
    assert average(KahanTarget, 2e-5, 3e-5) == pytest.approx(exact, abs=6e-8)
    # A lag whose step is under half the smallest fp16 number does not shrink any more.
    assert average(LagTarget, 2e-5, 3e-5) == pytest.approx(exact, abs=2**-25 / TAU + 2**-24)


@pytest.mark.parametrize("weight", [6.0, 6.6, 60.0, 2_000.0])
def test_kahan_target_halves_its_scale_before_a_large_weight_overflows_it(weight):
    psi = torch.full((8,), 0.1, dtype=torch.float16)
    target = KahanTarget(psi)
    psi[5] = weight
    for _ in range(4_000):
        target.follow(psi, TAU)
    formed = target.form(target.codes, torch.empty_like(psi))
    assert torch.isfinite(formed).all()
    assert int(target.halvings) > 0
    assert int(target.culprit) == 5
    assert float(target.scale) < KAHAN_SCALE
    assert torch.allclose(formed.float(), psi.float(), rtol=2e-3)


def test_halving_the_kahan_scale_leaves_target_and_compensation_where_they_were():
    psi = torch.linspace(0.01, 5.9, 64).to(torch.float16)
    target = KahanTarget(psi)
    start = float(target.scale)
    psi.add_(0.05)
    for _ in range(10):
        target.follow(psi, TAU)
    assert bool((target.compensation != 0).any())
    exact = (target.scaled.double() - target.compensation.double()) / float(target.scale)
    psi[-1] = 7.5
    before = psi.clone()
    target._guard(psi)
    assert float(target.scale) == start / 2
    after = (target.scaled.double() - target.compensation.double()) / float(target.scale)
    assert torch.equal(before, psi)
    assert torch.allclose(after, exact, rtol=1e-6)


@pytest.mark.parametrize("weight", [7.0, 60_000.0])
def test_kahan_target_can_begin_at_a_large_weight(weight):
    psi = torch.full((8,), weight, dtype=torch.float16)
    target = KahanTarget(psi)
    formed = target.form(target.codes, torch.empty_like(psi))
    assert torch.allclose(formed.float(), psi.float(), rtol=2**-10)


def test_lag_target_passes_the_weight_at_which_kahan_momentum_would_overflow():
    psi = torch.full((8,), 6.5, dtype=torch.float16)
    target = LagTarget(psi)
    for _ in range(1_000):
        before = psi.float()
        psi.add_(0.0078125)
        target.moved(slice(0, 8), psi.float() - before)
        target.follow(psi, TAU)
    formed = target.form(target.codes, torch.empty_like(psi)).float()
    assert float(psi[0]) > 14
    # A ramp of r per step is followed at a distance of r (1 - tau) / tau. A ramp without noise is the worst case:
    # the stored lag comes to rest once its approach is under half its spacing, 2^-11 / tau of it from there.
    assert torch.allclose(psi.float() - formed, torch.full((8,), 0.0078125 * (1 - TAU) / TAU), rtol=2**-11 / TAU)


@pytest.mark.parametrize("kind", ["lag", "kahan", "plain"])
def test_target_begins_equal_to_its_parameters(kind):
    psi = torch.linspace(-2, 2, 64).to(torch.float16)
    target = target_state(kind, psi)
    formed = target.form(target.codes, torch.empty_like(psi))
    # S = C psi is rounded once.
    assert torch.allclose(formed.float(), psi.float(), rtol=2**-10)


def test_lag_target_holds_half_the_bytes_of_kahan_momentum():
    psi = torch.zeros(1_000, dtype=torch.float16)
    held = {
        kind: sum(part.nbytes for part in target_state(kind, psi).state().values() if part.ndim)
        for kind in ("lag", "kahan")
    }
    assert held == {"lag": 2_000, "kahan": 4_000}
