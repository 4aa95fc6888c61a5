"""The moments' storages against float64 over long horizons: in one byte each, m / w and w are right on average."""

import math

import numpy as np
import pytest
import torch

from edge_sac.moments import ByteMoments, HalfMoments, MomentStorage, SingleMoments, moment_storage

CPU = torch.device("cpu")
BETAS = (0.9, 0.999)
SPAN = slice(0, 256)
YES, NO = torch.tensor(True), torch.tensor(False)


def gaussian(rng, _):
    return rng.normal(size=256)


def biased(rng, _):
    return 0.5 + rng.normal(size=256)


def sparse(rng, _):
    return rng.normal(size=256) * (rng.random(256) < 0.01)


def falling(rng, step):
    return (0.1 + 0.9 * math.exp(-step / 1_000)) * (1 + 0.1 * rng.normal(size=256))


def advance(storage: MomentStorage, g: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    storage.begin()
    storage.enable(YES)
    m, w = storage.load(SPAN, torch.tensor([[BETAS[0]], [math.sqrt(BETAS[1])]]))
    m.add_(g, alpha=1 - BETAS[0])
    w.square_().addcmul_(g, g, value=1 - BETAS[1]).sqrt_()
    kept = m.clone(), w.clone()
    storage.store(SPAN)
    return kept


@pytest.mark.parametrize("gradients", [gaussian, biased, sparse, falling])
@pytest.mark.parametrize("size", [1.0, 1e3, 3e-2])
def test_moments_in_one_byte_follow_float64_over_6000_steps(gradients, size):
    storage = ByteMoments(torch.zeros(256, dtype=torch.float16), 256, BETAS)
    rng = np.random.default_rng(0)
    m, v = np.zeros(256), np.zeros(256)
    ratios, steps, exact_steps = [], [], []
    for step in range(6_000):
        g = size * gradients(rng, step)
        m, v = BETAS[0] * m + (1 - BETAS[0]) * g, BETAS[1] * v + (1 - BETAS[1]) * g * g
        ours_m, ours_w = advance(storage, torch.from_numpy(g).float())
        if step >= 3_000:
            ratios.append(ours_w.double().numpy() / np.sqrt(v))
            steps.append((ours_m / ours_w).double().numpy())
            exact_steps.append(m / np.sqrt(v))
    # Three bits of mantissa: spacings of 6 to 12 %, whose errors the dither lets cancel over w's memory of 1,000 steps.
    # Where w falls it steps down a spacing each time that it would have lost it at the upper end: a few percent early.
    assert np.mean(ratios) == pytest.approx(1, abs=0.07)
    assert np.std(ratios) <= 0.15
    # The steps, m / w: on average over time those of float64, each element's own to the error of its w.
    assert np.mean(steps) == pytest.approx(np.mean(exact_steps), abs=0.02, rel=0.07)
    error = np.mean(np.array(steps) - np.array(exact_steps), axis=0)
    assert np.abs(error).max() <= 0.2


def test_w_in_one_byte_rounded_to_nearest_would_come_to_rest_at_half_its_value():
    storage = ByteMoments(torch.zeros(256, dtype=torch.float16), 256, BETAS)
    storage.enable = lambda _: ByteMoments.enable(storage, NO)  # type: ignore[method-assign]
    rng = np.random.default_rng(0)
    for step in range(6_000):
        _, w = advance(storage, torch.from_numpy(gaussian(rng, step)).float())
    assert float(w.mean()) < 0.5


def test_ratio_of_m_to_w_never_passes_its_bound():
    """The worst gradients there are: each beta1 / beta2 times as large as the one after it."""
    bound = ByteMoments(torch.zeros(256, dtype=torch.float16), 256, BETAS).largest_ratio
    m, v = 0.0, 0.0
    for step in range(200):
        g = (BETAS[1] / BETAS[0]) ** (step - 199)
        m, v = BETAS[0] * m + (1 - BETAS[0]) * g, BETAS[1] * v + (1 - BETAS[1]) * g * g
        assert m / math.sqrt(v) <= bound * (1 + 1e-9)
    assert m / math.sqrt(v) == pytest.approx(bound, rel=0.01)
    assert bound == pytest.approx(7.27, abs=0.01)


@pytest.mark.parametrize("kind", ["full", "8bit"])
def test_moments_of_a_skipped_step_go_back_as_they_came_at_any_scale(kind):
    storage = moment_storage(kind, torch.zeros(256, dtype=torch.float16), 256, BETAS)
    rng = np.random.default_rng(3)
    for step in range(200):
        advance(storage, torch.from_numpy(gaussian(rng, step)).float())
    before = {name: value.clone() for name, value in storage.state().items() if value.ndim}
    for _ in range(50):
        storage.begin()
        storage.enable(NO)
        storage.load(SPAN, torch.ones(2, 1))
        storage.store(SPAN)
    for name, value in before.items():
        assert torch.equal(storage.state()[name], value), name


@pytest.mark.parametrize("power", [0.5, 2.0])
@pytest.mark.parametrize("kind", ["full", "8bit"])
def test_change_of_scale_by_a_power_of_two_leaves_the_step_alone(kind, power):
    storage = moment_storage(kind, torch.zeros(256, dtype=torch.float16), 256, BETAS)
    rng = np.random.default_rng(4)
    for step in range(200):
        advance(storage, torch.from_numpy(gaussian(rng, step)).float())
    before = [part.clone() for part in storage.load(SPAN, torch.ones(2, 1))]
    storage.begin()
    storage.enable(NO)
    storage.load(SPAN, torch.full((2, 1), power))
    storage.store(SPAN)
    for ours, part in zip(storage.load(SPAN, torch.ones(2, 1)), before, strict=True):
        # Half precision scales exactly; of a byte what is added to w, 2^-16, does not, and m is up to 7.3 times w.
        assert torch.allclose(ours, power * part, rtol=1e-6, atol=8 * 2.0**-16 if kind == "8bit" else 0)


@pytest.mark.parametrize("g", [7.0e4, 3.0e6])
def test_w_beyond_its_room_is_told_by_the_peak(g):
    storage = ByteMoments(torch.zeros(256, dtype=torch.float16), 256, BETAS)
    peak = torch.zeros(())
    for _ in range(3):
        storage.begin()
        storage.enable(YES)
        m, w = storage.load(SPAN, torch.ones(2, 1))
        m.fill_(g)
        w.fill_(g)
        peak = storage.store(SPAN).clone()
    assert not float(peak) <= storage.room


def test_each_dtype_and_kind_has_its_storage_and_one_byte_each_is_two():
    half, single = torch.zeros(1_000, dtype=torch.float16), torch.zeros(1_000)
    assert isinstance(moment_storage("full", half, 10, BETAS), HalfMoments)
    assert isinstance(moment_storage("full", single, 10, BETAS), SingleMoments)
    byte = moment_storage("8bit", half, 10, BETAS)
    assert sum(value.nbytes for value in byte.state().values() if value.ndim) == 2_000
