"""Networks beyond the plain one, differentiated by autograd; losses, optimisers and targets are the same.

`NormalisedMlp` divides each hidden layer's values by their spread over the layer before the ReLU, as DroQ (arXiv
2110.02034) and RLPD (arXiv 2302.02948) do in their critics: values that one network never saw stay within bounds. It
has no parameters of its own, so everything that is counted in parameters stays as it is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from edge_sac.half_matmul import WHOLE, Product, Weights
from edge_sac.networks import FlatWeights, Gradient, Mlp


class _Round(torch.autograd.Function):
    """Rounds values, and their gradients on the way back, to what a dtype can hold."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = dtype
        return values.to(dtype).to(values.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.to(ctx.dtype).to(grad.dtype), None


class NormalisedMlp(Mlp):
    """K equal networks whose hidden layers are normalised; the passes are `Mlp`'s in what they take and give."""

    def outputs(self, batch: int, dtype: torch.dtype, device: torch.device) -> list[Tensor]:  # noqa: ARG002
        """Return an empty list: what a pass leaves is autograd's."""
        return []

    def forward(self, x: Tensor, weights: Weights, product: Product, saved: list[Tensor]) -> Tensor:
        """Return the output for `x` [K or 1, B, I]; of stored parameters the graph is kept in `saved`."""
        differentiable = isinstance(weights, FlatWeights)
        with torch.set_grad_enabled(differentiable):
            inputs = x.detach().expand(self.copies, -1, -1).clone().requires_grad_(differentiable)
            parts = [part for layer in range(self.depth) for part in self._parts(layer, weights, inputs)]
            y = inputs
            for layer in range(self.depth):
                y = _rounded(torch.baddbmm(parts[2 * layer + 1], y, parts[2 * layer]), product)
                if layer + 1 < self.depth:
                    y = _rounded(torch.relu(self.between(y)), product)
        if differentiable:
            saved[:] = [inputs, *parts, y]
        return y.detach()

    def between(self, hidden: Tensor) -> Tensor:
        """Return what goes into the ReLU for a hidden layer's values [K, B, width]."""
        return torch.nn.functional.layer_norm(hidden, hidden.shape[-1:])

    def backward(
        self,
        grad_output: Tensor,
        x: Tensor,  # noqa: ARG002
        saved: list[Tensor],
        weights: Weights,  # noqa: ARG002
        product: Product,  # noqa: ARG002
        gradient: Gradient,
        spare: list[Tensor],  # noqa: ARG002
    ) -> None:
        """Give the parameters' gradient to `gradient`, from the last layer to the first."""
        _, *parts, y = saved
        found = torch.autograd.grad(y, parts, grad_output)
        for layer in reversed(range(self.depth)):
            gradient.put(layer, found[2 * layer], found[2 * layer + 1])

    def input_gradient(
        self,
        grad_output: Tensor,
        saved: list[Tensor],
        weights: Weights,  # noqa: ARG002
        product: Product,
        spare: list[Tensor],  # noqa: ARG002
        out: Tensor,
    ) -> Tensor:
        """Write the gradient by the last inputs to `out` [K, B, at most I] and return it."""
        inputs, *_, y = saved
        (found,) = torch.autograd.grad(y, inputs, grad_output)
        return product.round_(out.copy_(found[..., -out.shape[-1] :]))

    def _parts(self, layer: int, weights: Weights, like: Tensor) -> list[Tensor]:
        """Return weights [K, I, O] and bias [K, 1, O] of a layer, copied into tensors of their own."""
        shape = weights.shape(layer)
        weight = weights.read(layer, WHOLE, like.new_empty(shape))
        bias = weights.bias(layer, like.new_empty(self.copies, 1, shape[-1]))
        return [part.requires_grad_(like.requires_grad) for part in (weight, bias)]


def _rounded(values: Tensor, product: Product) -> Tensor:
    if not product.widened:
        return values
    rounded: Tensor = _Round.apply(values, product.dtype)  # type: ignore[no-untyped-call]
    return rounded
