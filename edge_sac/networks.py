"""Multi-layer perceptrons over one flat buffer, K of them at a time, with a backward pass of their own.

All parameters of the K networks are views of one contiguous tensor; so are their gradients. The optimiser, the
target and the finite check then see a single vector whatever the depth. The backward pass is written out because
the update needs three different ones (all gradients, parameter gradients only, input gradients only), writes them
where they are wanted, and saves one activation per layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from edge_sac.half_matmul import affine, matmul

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

    def forward(self, x: Tensor, flat: Tensor, compute: torch.dtype) -> list[Tensor]:
        """Return the input and every layer's output: [K, B, width] each, in the dtype of `x` [K or 1, B, I]."""
        layers = self.views(flat)
        saved = [x.expand(self.copies, -1, -1)]
        for layer, (weight, bias) in enumerate(layers):
            y = affine(saved[-1], weight, bias, compute)
            saved.append((y.relu_() if layer + 1 < len(layers) else y).to(x.dtype))
        return saved

    def backward(
        self,
        grad_output: Tensor,  # [K, B, O]
        saved: list[Tensor],
        flat: Tensor,
        compute: torch.dtype,
        grad_flat: Tensor | None = None,
    ) -> Tensor | None:
        """Write the parameters' gradient into `grad_flat`; without it return the input's, [K, B, I], instead."""
        layers = self.views(flat)
        grads = None if grad_flat is None else self.views(grad_flat)
        grad = grad_output
        for layer in reversed(range(len(layers))):
            if grads is not None:
                grad_weight, grad_bias = grads[layer]
                wide = grad.to(compute)
                grad_weight.copy_(torch.matmul(saved[layer].to(compute).mT, wide))
                grad_bias.copy_(wide.sum(dim=1, keepdim=True, dtype=torch.promote_types(compute, torch.float32)))
                if layer == 0:
                    return None
            grad = matmul(grad, layers[layer][0].mT, compute)
            if layer > 0:
                grad = torch.ops.aten.threshold_backward(grad, saved[layer], 0)  # a select, never inf * 0
        return grad


def _count(shape: tuple[int, ...]) -> int:
    total = 1
    for length in shape:
        total *= length
    return total
