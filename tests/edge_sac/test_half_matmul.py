"""The product that rounds once."""

import pytest
import torch

from edge_sac import half_matmul
from edge_sac.half_matmul import MatmulPath, Product, probe

CPU = torch.device("cpu")


def product(dtype: torch.dtype, compute: torch.dtype, weights: int = 1_000_000) -> Product:
    return Product(MatmulPath(dtype, compute, "test"), CPU, weights, 1_000_000)


class Layer:
    """One layer of weights and biases, held as they are."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        self.weight, self.given = weight, bias

    def stored(self, _: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.weight, self.given

    def shape(self, _: int) -> tuple[int, int, int]:
        return tuple(self.weight.shape)

    def read(self, _: int, part, out: torch.Tensor) -> torch.Tensor:
        return out.copy_(self.weight[part])

    def bias(self, _: int, out: torch.Tensor) -> torch.Tensor:
        return out.copy_(self.given)


class Computed(Layer):
    """The same, but nowhere stored: as a target's parameters are."""

    def stored(self, _: int) -> None:
        return None


def operands(batch: int, inputs: int, outputs: int, dtype=torch.float16) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, batch, inputs), (2, inputs, outputs), (2, 1, outputs), (2, batch, outputs))
    return tuple(torch.randn(shape, generator=generator).to(dtype) for shape in shapes)


@pytest.mark.parametrize("length", [1, 23, 256, 8_192])
def test_fp16_product_is_the_exact_one_rounded_once(length):
    x, weight, bias, _ = operands(16, length, 16)
    multiply = product(torch.float16, torch.float32)
    y = multiply.round_(multiply.affine(x.float(), Layer(weight, bias), 0, torch.empty(2, 16, 16)))
    exact = x.double() @ weight.double() + bias.double()
    # Half an fp16 spacing, and fp32's accumulation: length * 2^-24 of the sum of magnitudes.
    magnitudes = x.double().abs() @ weight.double().abs() + bias.double().abs()
    assert ((y.double() - exact).abs() <= 2.0**-11 * exact.abs() + length * 2.0**-24 * magnitudes + 2.0**-25).all()
    assert torch.equal(y, y.half().float())


PATHS = [
    pytest.param(torch.float32, torch.float32, Layer, id="single precision"),
    pytest.param(torch.float32, torch.float32, Computed, id="single precision, computed when read"),
    pytest.param(torch.float16, torch.float32, Layer, id="widened"),
    pytest.param(torch.float16, torch.float32, Computed, id="widened, computed when read"),
    pytest.param(torch.float16, torch.float16, Layer, id="native"),
    pytest.param(torch.float16, torch.float16, Computed, id="native, computed when read"),
]


@pytest.mark.parametrize("limit", [10_000, 400, 70], ids=["whole layers", "one copy", "a few rows"])
@pytest.mark.parametrize(("dtype", "compute", "kind"), PATHS)
def test_each_product_is_right_whole_and_in_blocks(monkeypatch, dtype, compute, kind, limit):
    monkeypatch.setattr(half_matmul, "BLOCK", limit)
    x, weight, bias, grad = operands(12, 17, 23, dtype)
    multiply, layer = product(dtype, compute), kind(weight, bias)
    x_wide, grad_wide = x.to(compute), grad.to(compute)
    wide = [part.double() for part in (x, weight, bias, grad)]
    # One rounding of values up to 20, where the native product rounds each of its steps.
    near = {"rtol": 2**-9, "atol": 2**-8} if dtype == torch.float16 else {"rtol": 1e-5, "atol": 1e-5}
    y = multiply.affine(x_wide, layer, 0, torch.full((2, 12, 23), torch.nan, dtype=compute))
    assert torch.allclose(y.double(), wide[0] @ wide[1] + wide[2], **near)
    for first in (0, 5):
        out = torch.full((2, 12, 17 - first), torch.nan, dtype=compute)
        by_input = multiply.grad_input(grad_wide, layer, 0, out, first)
        assert torch.allclose(by_input.double(), wide[3] @ wide[1][:, first:].mT, **near)
    by_weight = torch.full((2, 17, 23), torch.nan, dtype=dtype)
    multiply.grad_weight(x_wide, grad_wide, by_weight)
    assert torch.allclose(by_weight.double(), wide[0].mT @ wide[3], **near)
    seen = torch.zeros(2, 17, 23, dtype=compute)
    for part, block in multiply.grad_weight_parts(x_wide, grad_wide):
        assert block.numel() <= limit
        assert block.is_contiguous()
        seen[part] += block
    assert torch.allclose(seen.double(), wide[0].mT @ wide[3], **near)


@pytest.mark.parametrize(("dtype", "compute", "kind"), PATHS)
def test_products_with_one_column_are_right(dtype, compute, kind):
    x, weight, bias, grad = operands(12, 17, 1, dtype)
    multiply, layer = product(dtype, compute), kind(weight, bias)
    x_wide, grad_wide = x.to(compute), grad.to(compute)
    wide = [part.double() for part in (x, weight, bias, grad)]
    near = {"rtol": 2**-9, "atol": 2**-8} if dtype == torch.float16 else {"rtol": 1e-5, "atol": 1e-5}
    y = multiply.affine(x_wide, layer, 0, torch.full((2, 12, 1), torch.nan, dtype=compute))
    assert torch.allclose(y.double(), wide[0] @ wide[1] + wide[2], **near)
    by_input = multiply.grad_input(grad_wide, layer, 0, torch.full((2, 12, 17), torch.nan, dtype=compute))
    assert torch.allclose(by_input.double(), wide[3] @ wide[1].mT, **near)
    by_weight = torch.full((2, 17, 1), torch.nan, dtype=dtype)
    multiply.grad_weight(x_wide, grad_wide, by_weight)
    assert torch.allclose(by_weight.double(), wide[0].mT @ wide[3], **near)


def test_one_input_serves_both_copies():
    x, weight, bias, grad = operands(12, 17, 23, torch.float32)
    multiply = product(torch.float32, torch.float32)
    y = multiply.affine(x[:1], Layer(weight, bias), 0, torch.empty(2, 12, 23))
    assert torch.allclose(y, x[:1] @ weight + bias, atol=1e-5)
    by_weight = torch.empty(2, 17, 23)
    multiply.grad_weight(x[:1], grad, by_weight)
    assert torch.allclose(by_weight, x[:1].mT @ grad, atol=1e-5)


def test_product_beyond_fp16_is_infinite_as_on_a_gpu():
    big = torch.full((1, 1, 2), 240.0)
    multiply = product(torch.float16, torch.float32)
    layer = Layer(big.mT.half(), torch.zeros(1, 1, 1).half())
    assert torch.isinf(multiply.round_(multiply.affine(big, layer, 0, torch.empty(1, 1, 1)))).all()


def test_affine_adds_the_bias_before_rounding():
    layer = Layer(torch.full((1, 1, 1), 2048.0).half(), torch.ones(1, 1, 1).half())
    y = product(torch.float16, torch.float32).affine(torch.ones(1, 1, 1), layer, 0, torch.empty(1, 1, 1))
    assert float(y) == 2049.0


def test_native_product_that_accumulates_in_half_precision_is_not_taken(monkeypatch):
    monkeypatch.setattr(half_matmul, "_fastest", lambda _, compute: 1e-3 if compute == torch.float16 else 2e-3)
    assert probe(CPU, torch.float16).compute == torch.float16
    exact = torch.mm

    def careless(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(len(a), b.shape[1], dtype=a.dtype)
        for part in range(0, a.shape[1], 64):
            total += exact(a[:, part : part + 64], b[part : part + 64])
        return total

    monkeypatch.setattr(torch, "mm", careless)
    path = probe(CPU, torch.float16)
    assert path.compute == torch.float32
    assert "off by" in path.reason


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
