"""Multi-layer perceptrons over one flat buffer, K of them at a time, with a backward pass of their own.

All parameters of the K networks are views of one contiguous tensor; so are their gradients. The optimiser, the
target and the finite check then see a single vector whatever the depth. The backward pass is written out because
the update needs two different ones (by the parameters, or by some of the inputs), wants each gradient where it is
used, and saves one activation per layer. Activations are in the product's compute dtype, rounded to the stored one;
all of a pass goes to memory that the caller holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from edge_sac.half_matmul import Part, Product, Weights

ALIGN = 8
"""Elements: every matrix starts on 16 bytes in fp16."""


@dataclass(frozen=True)
class Mlp:
    """The shape of K equal networks of ReLU layers: input, hidden widths, output."""

    copies: int
    sizes: tuple[int, ...]
    """Widths from input to output, at least two."""

    @cached_property
    def segments(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        """Return the offset and shape in the flat buffer of each weight [K, I, O] and bias [K, 1, O]."""
        found: dict[str, tuple[int, tuple[int, ...]]] = {}
        offset = 0
        for layer, (inputs, outputs) in enumerate(zip(self.sizes, self.sizes[1:], strict=False)):
            for name, shape in (
                (f"w{layer}", (self.copies, inputs, outputs)),
                (f"b{layer}", (self.copies, 1, outputs)),
            ):
                found[name] = (offset, shape)
                offset += -(-_count(shape) // ALIGN) * ALIGN
        return found

    @cached_property
    def size(self) -> int:
        """Return the length of the flat buffer, padding included."""
        offset, shape = list(self.segments.values())[-1]
        return offset + -(-_count(shape) // ALIGN) * ALIGN

    @property
    def depth(self) -> int:
        """Return the number of layers."""
        return len(self.sizes) - 1

    @property
    def largest_layer(self) -> int:
        """Return the number of weights of the largest layer."""
        return max(_count(shape) for _, shape in self.segments.values())

    def views(self, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Return (weight [K, I, O], bias [K, 1, O]) of each layer as views of `flat`."""
        parts = [flat[offset : offset + _count(shape)].view(shape) for offset, shape in self.segments.values()]
        return list(zip(parts[::2], parts[1::2], strict=True))

    def name_at(self, index: int) -> str:
        """Return which parameter the flat `index` belongs to, as `w1[0, 3, 7]`."""
        for name, (offset, shape) in self.segments.items():
            if offset <= index < offset + _count(shape):
                rest, where = index - offset, []
                for length in reversed(shape):
                    rest, position = divmod(rest, length)
                    where.append(position)
                return f"{name}[{', '.join(str(i) for i in reversed(where))}]"
        return f"padding[{index}]"

    def initialise(self, flat: Tensor, generator: torch.Generator) -> None:
        """Fill `flat` with orthogonal weights and zero biases; the generator is the CPU's, so devices agree."""
        flat.zero_()
        for weight, _ in self.views(flat):
            for one in weight:
                fresh = torch.empty(one.shape, dtype=torch.float32)
                torch.nn.init.orthogonal_(fresh, generator=generator)
                one.copy_(fresh)

    def outputs(self, batch: int, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
        """Return memory for every layer's output of one pass: [K, B, width] each."""
        return [torch.zeros(self.copies, batch, width, dtype=dtype, device=device) for width in self.sizes[1:]]

    def forward(self, x: Tensor, weights: Weights, product: Product, saved: list[Tensor]) -> Tensor:
        """Write every layer's output for `x` [K or 1, B, I] to `saved` and return the last, [K, B, O]."""
        for layer, y in enumerate(saved):
            product.affine(x, weights, layer, y)
            if layer + 1 < len(saved):
                y.relu_()
            x = product.round_(y)
        return x

    def backward(
        self,
        grad_output: Tensor,  # [K, B, O]
        x: Tensor,  # [K or 1, B, I], as given to forward
        saved: list[Tensor],
        weights: Weights,
        product: Product,
        gradient: Gradient,
        spare: list[Tensor],
    ) -> None:
        """Give the parameters' gradient to `gradient`, from the last layer to the first; `spare` is overwritten."""
        grad = grad_output
        for layer in reversed(range(len(saved))):
            inputs = saved[layer - 1] if layer else x
            below = _below(grad, saved, layer, weights, product, spare) if layer else grad
            gradient.take(layer, inputs, grad)
            grad = below

    def input_gradient(
        self,
        grad_output: Tensor,  # [K, B, O]
        saved: list[Tensor],
        weights: Weights,
        product: Product,
        spare: list[Tensor],
        out: Tensor,
    ) -> Tensor:
        """Write the gradient by the last inputs to `out` [K, B, at most I] and return it; `spare` is overwritten."""
        grad = grad_output
        for layer in reversed(range(1, len(saved))):
            grad = _below(grad, saved, layer, weights, product, spare)
        product.grad_input(grad, weights, 0, out, first=self.sizes[0] - out.shape[-1])
        return product.round_(out)


def _below(
    grad: Tensor, saved: list[Tensor], layer: int, weights: Weights, product: Product, spare: list[Tensor]
) -> Tensor:
    """Return the gradient by the hidden layer below `layer`, zero where its unit was off."""
    below = product.grad_input(grad, weights, layer, spare[layer - 1])
    # A select: an infinite gradient times zero would be NaN.
    torch.ops.aten.threshold_backward.grad_input(below, saved[layer - 1], 0, grad_input=below)
    return product.round_(below)


class Gradient(Protocol):
    """Where a backward pass leaves the gradient by the parameters."""

    def take(self, layer: int, inputs: Tensor, grad: Tensor) -> None:
        """Take the layer's inputs [K or 1, B, I] and the gradient by its outputs [K, B, O]; neither may be changed.

        The layer's parameters are not read again before the next pass.
        """

    def put(self, layer: int, weight: Tensor, bias: Tensor) -> None:
        """Take the layer's gradient itself, [K, I, O] and [K, 1, O], as autograd computed it; it may be changed."""


class FlatWeights:
    """The parameters of K networks in one flat buffer."""

    def __init__(self, mlp: Mlp, flat: Tensor) -> None:
        self._views = mlp.views(flat)

    def stored(self, layer: int) -> tuple[Tensor, Tensor] | None:
        """Return weights and bias."""
        return self._views[layer]

    def shape(self, layer: int) -> tuple[int, int, int]:
        """Return (K, I, O)."""
        copies, inputs, outputs = self._views[layer][0].shape
        return copies, inputs, outputs

    def read(self, layer: int, part: Part, out: Tensor) -> Tensor:
        """Copy a part of the weights to `out`."""
        return out.copy_(self._views[layer][0][part])

    def bias(self, layer: int, out: Tensor) -> Tensor:
        """Copy the bias to `out`."""
        return out.copy_(self._views[layer][1])


class GradientBuffer:
    """A flat buffer that a backward pass fills: the gradient as a whole, each element rounded once."""

    def __init__(self, mlp: Mlp, flat: Tensor, product: Product) -> None:
        self._views, self._product = mlp.views(flat), product

    def take(self, layer: int, inputs: Tensor, grad: Tensor) -> None:
        """Write the layer's gradient to its place."""
        weight, bias = self._views[layer]
        self._product.grad_weight(inputs, grad, weight)
        sum_rows(grad, bias)

    def put(self, layer: int, weight: Tensor, bias: Tensor) -> None:
        """Write the layer's gradient to its place."""
        for place, value in zip(self._views[layer], (weight, bias), strict=True):
            place.copy_(value)


def sum_rows(grad: Tensor, out: Tensor) -> None:
    """Write the sum of `grad` [K, B, O] over B, in at least fp32 and rounded once, to `out` [K, 1, O]."""
    if grad.dtype == out.dtype and grad.dtype in (torch.float32, torch.float64):
        torch.sum(grad, 1, keepdim=True, out=out)
    else:
        out.copy_(torch.sum(grad, 1, keepdim=True, dtype=torch.promote_types(grad.dtype, torch.float32)))


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for length in shape:
        total *= length
    return total
