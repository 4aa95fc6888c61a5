"""Dithered storage: right on average over time, unchanged where nothing changes."""

import pytest
import torch

from edge_sac.dither import Dither

CPU = torch.device("cpu")
YES, NO = torch.tensor(True), torch.tensor(False)


def go(dither: Dither, enabled: torch.Tensor) -> None:
    dither.advance()
    dither.enable(enabled)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("size", [1.0, 1e-3, 3e-5, 2e-7, 1e-8])
def test_stored_value_is_right_on_average_over_time_down_into_the_subnormals(dtype, size):
    dither = Dither(2, 64, dtype, CPU)
    value = torch.linspace(-1.7, 1.9, 128).view(2, 64) * size
    total = torch.zeros(2, 64, dtype=torch.float64)
    for _ in range(2_000):
        go(dither, YES)
        total += dither.store(value, torch.empty(2, 64, dtype=dtype)).double()
    limits = torch.finfo(dtype)
    spacing = (value.abs().double() * limits.eps).clamp(min=limits.smallest_normal * limits.eps)
    error = (total / 2_000 - value.double()).abs()
    # A Weyl sequence of n values misses a share by at most about log(n) / n. At a power of two the spacing below is
    # half as wide as the dither takes it for, which makes an eighth of one.
    edge = (torch.log2(value.abs()).round() - torch.log2(value.abs())).abs() < limits.eps
    assert (error <= torch.where(edge, 0.13, 0.01) * spacing).all()


def test_value_that_came_from_storage_goes_back_unchanged_where_disabled():
    stored = torch.tensor([[1.0, 2.0, 1.5, 2.0**-14, 2.0**-24, 65504.0, 0.0, -3.0]], dtype=torch.float16)
    dither = Dither(1, 8, torch.float16, CPU)
    for _ in range(500):
        go(dither, NO)
        assert torch.equal(dither.store(stored.float(), torch.empty_like(stored)), stored)


def test_zero_stays_zero():
    dither = Dither(1, 1_024, torch.float16, CPU)
    for _ in range(200):
        go(dither, YES)
        assert not dither.store(torch.zeros(1, 1_024), torch.empty(1, 1_024, dtype=torch.float16)).any()


def test_phase_alone_brings_the_sequence_back():
    one, two = Dither(1, 16, torch.float16, CPU), Dither(1, 16, torch.float16, CPU)
    for _ in range(10):
        go(one, YES)
    two.phase.copy_(one.phase)
    go(one, YES)
    go(two, YES)
    value = torch.rand(1, 16)
    assert torch.equal(one.store(value, torch.empty(1, 16).half()), two.store(value, torch.empty(1, 16).half()))
