"""The floor under an update: its matrix products alone, into arrays that are there already.

No update can be faster than the products it needs with the same library, and a lean one is not much slower. The list
is of the least there is: both critics forward for the target and for the loss, every gradient of the critics' loss, the
actor forward twice, through the critics backward to the action alone, and every gradient of the actor. Where products
of a format go through a wider one, stored weights are widened before and their gradients rounded after, as an update
must; what else an update does is no part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from edge_sac.commands.bench.candidate import Candidate, Work

if TYPE_CHECKING:
    import torch

    from edge_sac.half_matmul import MatmulPath

COPY_BYTES = 256 * 2**20
"""Of the array copied to measure bandwidth: several times any cache."""


class Shape(NamedTuple):
    """One matrix product, [rows, inner] times [inner, columns]."""

    rows: int
    inner: int
    columns: int
    gradient: bool = False
    """Whether the result is a gradient of weights; else the second factor is weights."""


def shapes(work: Work) -> list[Shape]:
    """Return the matrix products of one update in the order they come."""
    batch, hidden = work.batch, work.hidden
    actor = (work.obs, *hidden, 2 * work.action)
    critic = (work.obs + work.action, *hidden, 1)

    def forward(sizes: Sequence[int]) -> list[Shape]:
        return [Shape(batch, inputs, outputs) for inputs, outputs in pairwise(sizes)]

    def backward(sizes: Sequence[int]) -> list[Shape]:
        """By every parameter: each layer's weights, and what each layer but the first passes on."""
        found: list[Shape] = []
        for layer, (inputs, outputs) in reversed(list(enumerate(pairwise(sizes)))):
            found.append(Shape(inputs, batch, outputs, gradient=True))
            if layer > 0:
                found.append(Shape(batch, outputs, inputs))
        return found

    def to_action() -> list[Shape]:
        """By the action alone, the parameters held."""
        sizes = (work.action, *hidden, 1)
        return [Shape(batch, outputs, inputs) for inputs, outputs in reversed(list(pairwise(sizes)))]

    target = forward(actor) + 2 * forward(critic)
    loss = 2 * (forward(critic) + backward(critic))
    improvement = forward(actor) + 2 * (forward(critic) + to_action()) + backward(actor)
    return target + loss + improvement


def flops(products: Sequence[Shape]) -> int:
    """Return the multiplications and additions in all."""
    return sum(2 * of.rows * of.inner * of.columns for of in products)


def operand_bytes(products: Sequence[Shape], value_bytes: int) -> int:
    """Return the bytes of every operand read once and every result written once."""
    return sum(value_bytes * (of.rows * of.inner + of.inner * of.columns + of.rows * of.columns) for of in products)


def build(work: Work) -> Candidate:
    """Return the products of `work` in the precision it names, on its device."""
    import torch

    from edge_sac.device import choose_device
    from edge_sac.half_matmul import probe
    from edge_sac.precision import precision

    torch.set_num_threads(work.threads)
    device = choose_device(work.device)
    dtype = precision(work.variant).dtype
    path = probe(device, dtype)
    products = shapes(work)
    facts: dict[str, Any] = {"flops": flops(products), "path": path.reason, "torch": torch.__version__}
    wait = None
    if device.type == "cuda":
        wait = torch.cuda.synchronize
        facts["bytes_per_s"] = bandwidth(device)
        facts["operand_bytes"] = operand_bytes(products, dtype.itemsize)
    return Candidate({"update": _all(products, path, device)}, facts, wait)


def _all(products: Sequence[Shape], path: MatmulPath, device: torch.device) -> Callable[[], None]:
    """Return what multiplies everything once."""
    import torch

    generator = torch.Generator().manual_seed(0)

    def operand(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator).to(device, path.compute)

    ready = [
        (operand(of.rows, of.inner), operand(of.inner, of.columns), operand(of.rows, of.columns)) for of in products
    ]
    if path.compute == path.dtype:

        def multiply() -> None:
            for a, b, out in ready:
                torch.mm(a, b, out=out)

        return multiply
    stored = [(out if of.gradient else b).to(path.dtype) for of, (_, b, out) in zip(products, ready, strict=True)]
    steps = [(of.gradient, half, *operands) for of, half, operands in zip(products, stored, ready, strict=True)]

    def widen_and_multiply() -> None:
        for gradient, half, a, b, out in steps:
            if gradient:
                torch.mm(a, b, out=out)
                half.copy_(out)
            else:
                b.copy_(half)
                torch.mm(a, b, out=out)

    return widen_and_multiply


def bandwidth(device: torch.device) -> float:
    """Return how fast `device` copies, read and written bytes both counted [B/s]: the best of several copies."""
    import time

    import torch

    source = torch.ones(COPY_BYTES, dtype=torch.uint8, device=device)
    into = torch.empty_like(source)
    best = float("inf")
    for _ in range(10):
        torch.cuda.synchronize()
        start = time.perf_counter()
        into.copy_(source)
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return 2 * COPY_BYTES / best
