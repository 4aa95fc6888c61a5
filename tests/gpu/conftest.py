"""The device that these tests need."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def cuda() -> Any:
    """Return the CUDA device."""
    import torch

    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return torch.device("cuda")
