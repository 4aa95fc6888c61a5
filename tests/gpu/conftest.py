"""The device that these tests need."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def cuda() -> torch.device:
    """Return the CUDA device."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    return torch.device("cuda")
