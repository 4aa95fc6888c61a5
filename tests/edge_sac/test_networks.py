"""The written-out passes of the networks against autograd, and their flat layout."""

import pytest
import torch

from edge_sac.half_matmul import MatmulPath, Product
from edge_sac.networks import ALIGN, FlatWeights, GradientBuffer, Mlp

SHAPES = [
    pytest.param(1, (6, 16, 16, 2), id="one network"),
    pytest.param(2, (7, 16, 8, 1), id="two at once"),
    pytest.param(2, (23, 5, 1), id="odd widths, padded"),
    pytest.param(2, (3, 1), id="no hidden layer"),
]


def made(copies: int, sizes: tuple[int, ...], dtype=torch.float64) -> tuple[Mlp, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    mlp = Mlp(copies, sizes)
    flat = torch.empty(mlp.size, dtype=dtype)
    mlp.initialise(flat, generator)
    for _, bias in mlp.views(flat):
        bias.copy_(torch.randn(bias.shape, generator=generator))
    x = torch.randn(1, 32, sizes[0], generator=generator).to(dtype)
    return mlp, flat, x


class Passes:
    """The passes of one network on one input, with memory and weights as an agent gives them."""

    def __init__(self, mlp: Mlp, flat: torch.Tensor, x: torch.Tensor, compute: torch.dtype) -> None:
        batch = x.shape[1]
        path = MatmulPath(flat.dtype, compute, "test")
        self.mlp, self.x, self.flat = mlp, x.to(compute), flat
        self.product = Product(path, torch.device("cpu"), mlp.largest_layer, 2 * batch * max(mlp.sizes))
        self.weights = FlatWeights(mlp, flat)
        self.saved, self.spare = (mlp.outputs(batch, compute, torch.device("cpu")) for _ in range(2))

    def forward(self) -> torch.Tensor:
        return self.mlp.forward(self.x, self.weights, self.product, self.saved)

    def parameter_gradient(self, grad_output: torch.Tensor, grad_flat: torch.Tensor) -> None:
        buffer = GradientBuffer(self.mlp, grad_flat, self.product)
        self.mlp.backward(grad_output, self.x, self.saved, self.weights, self.product, buffer, self.spare)

    def input_gradient(self, grad_output: torch.Tensor, last: int) -> torch.Tensor:
        out = torch.full((self.mlp.copies, self.x.shape[1], last), torch.nan, dtype=self.x.dtype)
        return self.mlp.input_gradient(grad_output, self.saved, self.weights, self.product, self.spare, out)


def plainly(mlp: Mlp, flat: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    layers = mlp.views(flat)
    y = x.expand(mlp.copies, -1, -1)
    for number, (weight, bias) in enumerate(layers):
        y = torch.einsum("kbi,kio->kbo", y, weight) + bias
        if number + 1 < len(layers):
            y = y.clamp(min=0)
    return y


@pytest.mark.parametrize(("copies", "sizes"), SHAPES)
def test_output_and_gradients_equal_autograd_in_float64(copies, sizes):
    mlp, flat, x = made(copies, sizes)
    passes = Passes(mlp, flat, x, torch.float64)
    output = passes.forward().clone()
    grad_output = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    flat_leaf, x_leaf = flat.clone().requires_grad_(), x.expand(copies, -1, -1).clone().requires_grad_()
    expected = plainly(mlp, flat_leaf, x_leaf)
    expected.backward(grad_output)
    grad_flat = torch.full_like(flat, 7.0)
    for layer_gradient in mlp.views(grad_flat):
        for part in layer_gradient:
            part.fill_(float("nan"))
    passes.parameter_gradient(grad_output, grad_flat)
    assert torch.allclose(output, expected)
    for last in (sizes[0], 1):
        assert torch.allclose(passes.input_gradient(grad_output, last), x_leaf.grad[..., -last:])
    for ours, theirs in zip(mlp.views(grad_flat), mlp.views(flat_leaf.grad), strict=True):
        assert torch.allclose(ours[0], theirs[0])
        assert torch.allclose(ours[1], theirs[1])
    # Padding between the segments is nobody's gradient and must stay as it was.
    assert int((grad_flat == 7.0).sum()) == mlp.size - sum(w.numel() + b.numel() for w, b in mlp.views(flat))


def test_fp16_output_is_rounded_once_a_layer():
    mlp, flat, x = made(2, (17, 64, 1), torch.float16)
    passes = Passes(mlp, flat, x, torch.float32)
    passes.forward()
    saved = passes.saved
    layers = mlp.views(flat)
    exact = torch.einsum("kbi,kio->kbo", x.double().expand(2, -1, -1), layers[0][0].double()) + layers[0][1].double()
    # fp32 accumulation of 17 terms leaves no trace in fp16: nearest, or its neighbour on a tie.
    assert ((saved[0].double() - exact.clamp(min=0)).abs() <= 2.0**-11 * exact.abs() * 1.01 + 2.0**-25).all()
    # Held widened, with nothing that fp16 cannot hold.
    assert all(torch.equal(y, y.half().float()) for y in saved)


def test_inactive_unit_blocks_an_infinite_gradient_instead_of_making_it_nan():
    mlp, flat, x = made(1, (4, 8, 1))
    passes = Passes(mlp, flat, x, torch.float64)
    grad = torch.full_like(passes.forward(), float("inf"))
    passes.saved[0][:, :, 0] = 0
    grad_flat = torch.zeros_like(flat)
    passes.parameter_gradient(grad, grad_flat)
    first_layer = mlp.views(grad_flat)[0][0]
    assert torch.equal(first_layer[0, :, 0], torch.zeros(4, dtype=torch.float64))
    assert not torch.isfinite(first_layer[0, :, 1:]).all()


@pytest.mark.parametrize(("copies", "sizes"), SHAPES)
def test_every_segment_starts_on_sixteen_bytes_and_none_overlap(copies, sizes):
    mlp = Mlp(copies, sizes)
    flat = torch.zeros(mlp.size, dtype=torch.float16)
    for number, (offset, _) in enumerate(mlp.segments.values(), start=1):
        assert offset % ALIGN == 0
        assert float(flat[offset]) == 0
        weight_or_bias = [part for pair in mlp.views(flat) for part in pair][number - 1]
        assert not weight_or_bias.any()
        weight_or_bias.fill_(number)


def test_orthogonal_weights_and_zero_biases_from_the_seed_alone():
    mlp = Mlp(2, (8, 16, 1))
    first, again = torch.empty(mlp.size), torch.empty(mlp.size, dtype=torch.float16)
    mlp.initialise(first, torch.Generator().manual_seed(3))
    mlp.initialise(again, torch.Generator().manual_seed(3))
    weight, bias = mlp.views(first)[0]
    assert torch.allclose(weight[0] @ weight[0].T, torch.eye(8), atol=1e-6)
    assert not torch.equal(weight[0], weight[1])
    assert not bias.any()
    assert torch.equal(first.half(), again)


def test_flat_index_is_named_by_its_parameter():
    mlp = Mlp(2, (3, 5, 1))
    flat = torch.zeros(mlp.size)
    mlp.views(flat)[1][0][1, 4, 0] = 1
    assert mlp.name_at(int(flat.argmax())) == "w1[1, 4, 0]"
    assert mlp.name_at(31) == "padding[31]"
