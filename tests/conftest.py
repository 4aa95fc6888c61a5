"""Leaves out what needs an extra that is not installed, so that the same tests run on a base install."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Generator, Iterable
from pathlib import Path

import pytest

from edge_sac.openmp import wait_passively

# As the program does, and before torch is loaded: a busy machine would otherwise take tens of times as long.
wait_passively(os.environ)

EXTRAS = {
    "torch": "train",
    "safetensors": "train",
    "tensorboard": "train",
    "matplotlib": "train",
    "pybullet": "sim",
    "dm_control": "dmc",
}
ABSENT = {module for module in EXTRAS if importlib.util.find_spec(module) is None}
collect_ignore = ["integration"] if "torch" in ABSENT else []
"""Those train, each and every one."""


def skip_without_extra(error: BaseException | None) -> None:
    """Skip when `error` is the lack of an optional module that is not installed; else return."""
    module = error.name.split(".")[0] if isinstance(error, ModuleNotFoundError) and error.name else ""
    if module in ABSENT:
        pytest.skip(f"needs {module}: pip install 'edge-sac[{EXTRAS[module]}]'", allow_module_level=True)


class Module(pytest.Module):
    """A test module that is skipped when it imports an optional module that is not installed."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except self.CollectError as error:
            skip_without_extra(error.__cause__)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module:
    return Module.from_parent(parent, path=module_path)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    try:
        return (yield)
    except ModuleNotFoundError as error:
        skip_without_extra(error)
        raise


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    try:
        return (yield)
    except ModuleNotFoundError as error:
        skip_without_extra(error)
        raise
