"""The written-out passes of the networks against autograd, and their flat layout."""

import pytest
import torch

from edge_sac.networks import ALIGN, Mlp

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
    saved = mlp.forward(x, flat, torch.float64)
    grad_output = torch.randn(saved[-1].shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    flat_leaf, x_leaf = flat.clone().requires_grad_(), x.expand(copies, -1, -1).clone().requires_grad_()
    expected = plainly(mlp, flat_leaf, x_leaf)
    expected.backward(grad_output)
    grad_flat = torch.full_like(flat, 7.0)
    for layer_gradient in mlp.views(grad_flat):
        for part in layer_gradient:
            part.fill_(float("nan"))
    assert mlp.backward(grad_output, saved, flat, torch.float64, grad_flat) is None
    grad_input = mlp.backward(grad_output, saved, flat, torch.float64)
    assert torch.allclose(saved[-1], expected)
    assert grad_input is not None
    assert torch.allclose(grad_input, x_leaf.grad)
    for ours, theirs in zip(mlp.views(grad_flat), mlp.views(flat_leaf.grad), strict=True):
        assert torch.allclose(ours[0], theirs[0])
        assert torch.allclose(ours[1], theirs[1])
    # Padding between the segments is nobody's gradient and must stay as it was.
    assert int((grad_flat == 7.0).sum()) == mlp.size - sum(w.numel() + b.numel() for w, b in mlp.views(flat))


def test_fp16_output_is_rounded_once_a_layer():
    mlp, flat, x = made(2, (17, 64, 1), torch.float16)
    saved = mlp.forward(x, flat, torch.float32)
    layers = mlp.views(flat)
    exact = torch.einsum("kbi,kio->kbo", x.double().expand(2, -1, -1), layers[0][0].double()) + layers[0][1].double()
    # fp32 accumulation of 17 terms leaves no trace in fp16: nearest, or its neighbour on a tie.
    assert ((saved[1].double() - exact.clamp(min=0)).abs() <= 2.0**-11 * exact.abs() * 1.01 + 2.0**-25).all()
    assert saved[1].dtype == torch.float16


def test_inactive_unit_blocks_an_infinite_gradient_instead_of_making_it_nan():
    mlp, flat, x = made(1, (4, 8, 1))
    saved = mlp.forward(x, flat, torch.float64)
    grad = torch.full_like(saved[-1], float("inf"))
    first_layer = mlp.views(flat)[0][0]
    grad_flat = torch.zeros_like(flat)
    mlp.backward(grad, saved, flat, torch.float64, grad_flat)
    dead = (saved[1] <= 0).all(dim=1)[0]
    saved[1][:, :, 0] = 0
    mlp.backward(grad, saved, flat, torch.float64, grad_flat)
    assert first_layer.shape[-1] == len(dead)
    assert torch.equal(mlp.views(grad_flat)[0][0][0, :, 0], torch.zeros(4, dtype=torch.float64))


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
