"""Which device the learner runs on."""

from __future__ import annotations

import torch

from edge_sac.errors import Refused


def choose_device(name: str) -> torch.device:
    """Return the device called `name`; `auto` is a CUDA device that really multiplies, else the CPU.

    Raises Refused when CUDA is asked for by name and does not work, with what it said.
    """
    if name == "cpu":
        return torch.device("cpu")
    # torch may add fp16 products up in fp16 otherwise; every product of ours is accumulated in fp32.
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    problem = _cuda_problem()
    if problem and name == "cuda":
        raise Refused(f"device cuda does not work here: {problem}; see 'edge-sac doctor', or use --device cpu")
    return torch.device("cpu" if problem else "cuda")


def _cuda_problem() -> str:
    """Return why CUDA cannot be used, or an empty string."""
    if not torch.cuda.is_available():
        return "torch finds no CUDA device"
    try:
        one = torch.ones(16, 16, dtype=torch.float16, device="cuda")
        total = float((one @ one).sum())
    except RuntimeError as error:
        return str(error).splitlines()[0]
    return "" if total == 16**3 else f"a product of ones sums to {total}, not {16**3}"
