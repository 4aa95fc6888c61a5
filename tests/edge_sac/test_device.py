"""A device is used only when it was seen to multiply; one asked for by name is never replaced in silence."""

from __future__ import annotations

import pytest
import torch

from edge_sac import device
from edge_sac.device import choose_device
from edge_sac.errors import Refused


def test_cpu_is_given_without_looking_at_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_cuda_problem", lambda: pytest.fail("looked"))
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize(("problem", "chosen"), [("", "cuda"), ("the driver is too old", "cpu")])
def test_auto_is_cuda_where_it_works_and_the_cpu_elsewhere(
    problem: str, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "_cuda_problem", lambda: problem)
    assert choose_device("auto").type == chosen


def test_cuda_by_name_that_does_not_work_is_refused_with_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_cuda_problem", lambda: "the driver is too old")
    with pytest.raises(Refused, match=r"cuda.*the driver is too old.*doctor"):
        choose_device("cuda")


def test_cuda_that_is_absent_or_raises_or_multiplies_wrong_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no CUDA device" in device._cuda_problem()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    right = torch.ones

    def ones(*size: int, **_: object) -> torch.Tensor:
        return right(*size, dtype=torch.float16)

    monkeypatch.setattr(torch, "ones", ones)
    assert device._cuda_problem() == ""
    monkeypatch.setattr(torch, "ones", lambda *size, **_: 2 * right(*size, dtype=torch.float16))
    assert "16384" in device._cuda_problem()

    def fail(*_size: int, **_: object) -> torch.Tensor:
        raise RuntimeError("no kernel image\nfor this device")

    monkeypatch.setattr(torch, "ones", fail)
    assert device._cuda_problem() == "no kernel image"
