"""hAdam over one flat buffer: fp32 inside, each piece of state read once and stored once, chunk by chunk.

m <- beta1 m + (1 - beta1) g;  w <- hypot(sqrt(beta2) w, sqrt(1 - beta2) g);  theta <- theta - lr_t m / (w / c + eps)
with lr_t = lr / (1 - beta1^t) and c = sqrt(1 - beta2^t). This is the textbook form, so w = sqrt(v) and eps is Adam's
own; the released code of arXiv 2102.13565 keeps a w that is 3.16 times larger. Evaluated operation by operation in
fp16 the recursion is biased (sqrt(beta2) is one spacing below 1), so it is fp32 inside a chunk, where the squares of
fp16 numbers neither overflow nor vanish and the hypotenuse is the plain root of their sum. Rounded to nearest when
stored it is still biased for all but noisy gradients, so the moments are stored with a dither. In fp16 a single
gradient leaves its trace in w down to 2^-25 / sqrt(1 - beta2) = 9.4e-7, and smaller ones do so on average.

A step allocates nothing: every intermediate value, scalars included, has memory of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from edge_sac.adam import Adam
from edge_sac.coefficients import Coefficients
from edge_sac.flat import Largest, Views, chunk, spans
from edge_sac.half_matmul import Product
from edge_sac.moments import moment_storage
from edge_sac.networks import Mlp, sum_rows
from edge_sac.precision import Moments, Rounding
from edge_sac.rounding import step_storage
from edge_sac.target import TargetState

EPS_FLOOR = 1e-7
"""In scaled units, for half-precision moments: the released code's, about the smallest w there can be."""


class HAdam:
    """Parameters theta [N] with their moments and what their rounding needs: one flat buffer each.

    Where the coefficients are Adam's (`hypot=False`) it is Adam on the same path: w holds v, a square. A `target` is
    told, chunk by chunk, how theta moved. A step lies between `begin` and `end` of the coefficients: `step` takes it
    along `grad`, where the gradient was written, in the loss scale's units; or, where there is no such buffer, the
    gradient is given to `advance` part by part. What is not finite is skipped, on the device: the whole step, or the
    part alone.
    """

    def __init__(
        self,
        theta: Tensor,
        coefficients: Coefficients,
        index: int = 0,
        *,
        rounding: Rounding = "kahan",
        moments: Moments = "full",
        whole_gradient: bool = True,
        target: TargetState | None = None,
    ) -> None:
        device, length = theta.device, chunk(len(theta), theta.device)
        self.theta = theta
        self.betas, self.hypot = coefficients.betas, coefficients.hypot
        self.row = coefficients.row(index)
        self.target = target
        self.grad = torch.zeros_like(theta) if whole_gradient else None
        self.moments = moment_storage(moments, theta, length, self.betas)
        self.rounding = step_storage(rounding, theta, length)
        coefficients.room = min(coefficients.room, self.moments.room)
        if self.moments.floor:
            coefficients.eps_floor = max(coefficients.eps_floor, self.moments.floor, EPS_FLOOR)
        self._spans = spans(theta)
        self._theta = Views(theta.unsqueeze(0))
        self._scratch = Views(torch.empty(3, length, device=device), scratch=True)
        exact = theta.dtype in (torch.float32, torch.float64)
        self._simply_added = exact and (target is None or not target.listens)
        self._now = torch.zeros(3, device=device)
        self._decay, self._rate = self._now[:2].unsqueeze(1), self._now[2]
        self._limit = torch.finfo(theta.dtype).max
        # Of the gradient as a buffer, or of a part as the product leaves it.
        self._largest = {dtype: Largest(dtype, device) for dtype in (theta.dtype, torch.float32)}
        self._finite = torch.zeros((), dtype=torch.bool, device=device)
        bits = torch.int32 if theta.element_size() == 4 else torch.int16
        self._mask = torch.zeros((), dtype=bits, device=device)
        if self.grad is not None:
            self._grad, self._grad_bits = Views(self.grad.unsqueeze(0)), self.grad.view(bits)

    def step(self) -> None:
        """Take one step along `grad`."""
        assert self.grad is not None
        self.begin()
        self._allow(self.grad)
        # Zeros in place of a gradient that is not finite: all bits away, or none.
        self._grad_bits.bitwise_and_(self._mask.copy_(self._finite).neg_())
        for span in self._spans:
            self._advance(span, self._grad(span)[1])

    def begin(self) -> None:
        """Begin a step that is taken in parts."""
        self.moments.begin()
        self.rounding.begin()

    def advance(self, span: slice, grad: Tensor) -> None:
        """Take the step of theta[span] along `grad`, flat and at most a chunk long; it is used up."""
        self._allow(grad)
        grad.masked_fill_(self._finite.logical_not(), 0)
        self._advance(span, grad)

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that a checkpoint must hold."""
        return {"theta": self.theta} | self.moments.state() | self.rounding.state()

    def _allow(self, grad: Tensor) -> None:
        """Find whether `grad` is finite; where it is not, the step to come leaves everything as it is.

        Finite is what theta's dtype can hold, also of a part that was never rounded to it: its moments will be.
        """
        torch.le(self._largest[grad.dtype](grad), self._limit, out=self._finite)
        self.row.finite.logical_and_(self._finite)
        torch.where(self._finite, self.row.taken, self.row.skipped, out=self._now)
        self.moments.enable(self._finite)
        self.rounding.enable(self._finite)

    def _advance(self, span: slice, grad: Tensor) -> None:
        beta1, beta2 = self.betas
        theta = self._theta(span)[1]
        _, step, before, change = self._scratch(span)
        g = grad if grad.dtype == torch.float32 else before.copy_(grad)
        m, w = self.moments.load(span, self._decay)
        m.add_(g, alpha=1 - beta1)
        if self.hypot:
            w.mul_(w).addcmul_(g, g, value=1 - beta2).sqrt_()
        else:
            w.addcmul_(g, g, value=1 - beta2)
        torch.maximum(self.row.peak, self.moments.store(span), out=self.row.peak)
        # The step uses the moments as computed, before they were rounded into their storage.
        torch.mul(w, self.row.correction, out=step)
        if not self.hypot:
            step.sqrt_()
        torch.div(m, step.add_(self.row.eps), out=step).mul_(self._rate)
        if self._simply_added:
            theta.add_(step)
            return
        self.rounding.add(span, theta, step, before, change)
        if self.target is not None:
            self.target.moved(span, change)


class GradientStream:
    """Steps an optimiser along each part of the gradient as a backward pass computes it; none is ever stored."""

    def __init__(self, mlp: Mlp, optim: HAdam | Adam, product: Product) -> None:
        self._optim, self._product = optim, product
        self._segments = list(mlp.segments.values())
        self._last = len(mlp.sizes) - 2
        self._bias = torch.zeros(mlp.copies * max(mlp.sizes), device=optim.theta.device)
        self._length = chunk(len(optim.theta), optim.theta.device)

    def take(self, layer: int, inputs: Tensor, grad: Tensor) -> None:
        """Step the layer's parameters; the last layer comes first."""
        if layer == self._last:
            self._optim.begin()
        offset, (_, rows, columns) = self._segments[2 * layer]
        for (copy, part, _), block in self._product.grad_weight_parts(inputs, grad):
            first = (copy.start or 0) * rows + (part.start or 0)
            self._step(offset + first * columns, block.view(-1))
        offset, (copies, _, columns) = self._segments[2 * layer + 1]
        bias = self._bias[: copies * columns]
        sum_rows(grad, bias.view(copies, 1, columns))
        self._step(offset, bias)

    def put(self, layer: int, weight: Tensor, bias: Tensor) -> None:
        """Step the layer's parameters along a gradient that was computed as a whole."""
        if layer == self._last:
            self._optim.begin()
        for (offset, _), grad in zip(self._segments[2 * layer : 2 * layer + 2], (weight, bias), strict=True):
            self._step(offset, grad.reshape(-1))

    def _step(self, offset: int, grad: Tensor) -> None:
        for start in range(0, len(grad), self._length):
            part = grad[start : start + self._length]
            self._optim.advance(slice(offset + start, offset + start + len(part)), part)
