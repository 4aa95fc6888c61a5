"""The floor under an update: its matrix products alone, into arrays that are there already.

No update can be faster than the products it needs with the same library, and a lean one is not much slower. The list
is of the least there is: both critics forward for the target and for the loss, every gradient of the critics' loss, the
actor forward twice, through the critics backward to the action alone, and every gradient of the actor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from edge_sac.commands.bench.candidate import Candidate, Work

if TYPE_CHECKING:
    import torch

Shape = tuple[int, int, int]
"""Rows, what is summed over, columns."""
COPY_BYTES = 256 * 2**20
"""Of the array copied to measure bandwidth: several times any cache."""


def shapes(work: Work) -> list[Shape]:
    """Return the matrix products of one update in the order they come."""
    batch, hidden = work.batch, work.hidden
    actor = (work.obs, *hidden, 2 * work.action)
    critic = (work.obs + work.action, *hidden, 1)

    def forward(sizes: Sequence[int]) -> list[Shape]:
        return [(batch, inputs, outputs) for inputs, outputs in pairwise(sizes)]

    def backward(sizes: Sequence[int]) -> list[Shape]:
        """By every parameter: each layer's weights, and what each layer but the first passes on."""
        found: list[Shape] = []
        for layer, (inputs, outputs) in reversed(list(enumerate(pairwise(sizes)))):
            found.append((inputs, batch, outputs))
            if layer > 0:
                found.append((batch, outputs, inputs))
        return found

    def to_action() -> list[Shape]:
        """By the action alone, the parameters held."""
        sizes = (work.action, *hidden, 1)
        return [(batch, outputs, inputs) for inputs, outputs in reversed(list(pairwise(sizes)))]

    target = forward(actor) + 2 * forward(critic)
    loss = 2 * (forward(critic) + backward(critic))
    improvement = forward(actor) + 2 * (forward(critic) + to_action()) + backward(actor)
    return target + loss + improvement


def flops(products: Sequence[Shape]) -> int:
    """Return the multiplications and additions in all."""
    return sum(2 * rows * inner * columns for rows, inner, columns in products)


def operand_bytes(products: Sequence[Shape], value_bytes: int) -> int:
    """Return the bytes of every operand read once and every result written once."""
    return sum(value_bytes * (rows * inner + inner * columns + rows * columns) for rows, inner, columns in products)


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
    return Candidate({"update": _all(products, dtype, path.compute, device)}, facts, wait)


def _all(
    products: Sequence[Shape], dtype: torch.dtype, compute: torch.dtype, device: torch.device
) -> Callable[[], None]:
    """Return what multiplies everything once."""
    import torch

    from edge_sac.half_matmul import matmul

    generator = torch.Generator().manual_seed(0)

    def operand(*size: int) -> torch.Tensor:
        return torch.randn(size, generator=generator).to(device, dtype)

    ready = [
        (operand(rows, inner), operand(inner, columns), torch.empty(rows, columns, dtype=dtype, device=device))
        for rows, inner, columns in products
    ]

    def native() -> None:
        for a, b, out in ready:
            torch.mm(a, b, out=out)

    def widened() -> None:
        for a, b, _ in ready:
            matmul(a, b, compute)

    return native if compute == dtype else widened


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
