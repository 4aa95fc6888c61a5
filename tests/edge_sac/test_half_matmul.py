"""The product that rounds once."""

import pytest
import torch

from edge_sac import half_matmul
from edge_sac.half_matmul import affine, matmul, probe

CPU = torch.device("cpu")


def operands(length: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(1, 16, length, generator=generator).half()
    return a, torch.randn(1, length, 16, generator=generator).half()


@pytest.mark.parametrize("length", [1, 23, 256, 8_192])
def test_fp16_product_is_the_exact_one_rounded_once(length):
    a, b = operands(length)
    exact = a.double() @ b.double()
    error = (matmul(a, b, torch.float32).double() - exact).abs()
    # Half an fp16 spacing, and fp32's accumulation: length * 2^-24 of the sum of magnitudes.
    magnitudes = a.double().abs() @ b.double().abs()
    assert (error <= 2.0**-11 * exact.abs() + length * 2.0**-24 * magnitudes + 2.0**-25).all()


def test_product_is_computed_in_the_dtype_asked_for():
    """With fp32 operands, since torch's own fp16 product may accumulate in fp32 and then shows no difference."""
    a, b = (part.float() for part in operands(8_192))
    product = matmul(a, b, torch.float64)
    assert product.dtype == torch.float32
    assert torch.equal(product, (a.double() @ b.double()).float())
    assert not torch.equal(product, a @ b)


def test_product_beyond_fp16_is_infinite_as_on_a_gpu():
    big = torch.full((1, 1, 2), 240.0, dtype=torch.float16)
    assert torch.isinf(matmul(big, big.mT, torch.float32)).all()


def test_affine_adds_the_bias_before_rounding():
    x, weight = torch.ones(1, 1, 1).half(), torch.full((1, 1, 1), 2048.0).half()
    y = affine(x, weight, torch.ones(1, 1, 1).half(), torch.float32)
    assert y.dtype == torch.float32
    assert float(y) == 2049.0


def test_probe_takes_the_faster_path_and_gives_its_times(monkeypatch):
    monkeypatch.setattr(half_matmul, "_fastest", lambda _, compute: 1e-3 if compute == torch.float32 else 2e-3)
    slow = probe(CPU, torch.float16)
    monkeypatch.setattr(half_matmul, "_fastest", lambda _, compute: 3e-3 if compute == torch.float32 else 2e-3)
    fast = probe(CPU, torch.float16)
    assert (slow.compute, fast.compute) == (torch.float32, torch.float16)
    assert "through fp32" in slow.reason
    assert "2000 us" in fast.reason


def test_probe_of_fp32_multiplies_in_fp32():
    assert probe(CPU, torch.float32).compute == torch.float32


def test_probe_on_this_machine_takes_the_path_that_is_faster_by_a_clear_margin():
    a = torch.ones(256, 256, dtype=torch.float16)
    times = {compute: half_matmul._fastest(a, compute) for compute in (torch.float16, torch.float32)}
    if max(times.values()) > 2 * min(times.values()):
        assert probe(CPU, torch.float16).compute == min(times, key=lambda compute: times[compute])
