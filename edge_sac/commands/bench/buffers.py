"""Every tensor a learner holds, by the name it is reached under: what its state really costs."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

WHOLE = ("target", "dither")
"""Parts whose pieces are only together of interest."""
SMALL = 1024
"""Bytes; under it are scales and counters."""


def held_bytes(learner: Any) -> dict[str, int]:
    """Return the bytes of each piece of memory reachable from `learner`, each once, by its plainest path."""
    return {path: storage.nbytes() for path, storage in _pieces(learner).items()}


def state_bytes(learner: Any) -> int:
    """Return the bytes of what `learner` saves and of its gradients: all that grows with its parameters."""
    saved = {tensor.untyped_storage().data_ptr() for tensor in learner.state().values()}
    return sum(
        storage.nbytes()
        for path, storage in _pieces(learner).items()
        if storage.data_ptr() in saved or path.endswith("grad")
    )


def _pieces(root: Any) -> dict[str, torch.UntypedStorage]:
    """Return each piece of memory by the plainest path to it; a part of WHOLE may hold what belongs to others."""
    paths: dict[int, tuple[str, torch.UntypedStorage]] = {}
    for path, tensor in _tensors(root, "", set()):
        storage = tensor.untyped_storage()
        known = paths.get(storage.data_ptr())
        if storage.nbytes() and (known is None or _plainness(path) < _plainness(known[0])):
            paths[storage.data_ptr()] = path, storage
    return dict(paths.values())


def _plainness(path: str) -> tuple[int, bool, int]:
    """Return what makes a path worse than another: private parts and positions, a whole, length."""
    parts = path.split(".")
    private = sum(part.startswith("_") or part.isdigit() for part in parts)
    return private, any(part in WHOLE for part in parts), len(parts)


def by_role(pieces: dict[str, int]) -> dict[str, int]:
    """Return the bytes summed over networks by what they are for, largest first.

    What a part of WHOLE keeps is one role, and so is everything too small to be told apart.
    """
    roles: dict[str, int] = {}
    for path, size in pieces.items():
        parts = [part.strip("_") for part in path.split(".") if not part.isdigit()]
        role = next((part for part in parts if part in WHOLE), parts[-1])
        if size < SMALL:
            role = "scalars"
        roles[role] = roles.get(role, 0) + size
    return dict(sorted(roles.items(), key=lambda item: -item[1]))


def unreached_bytes(learner: Any, others: Any = ()) -> int:
    """Return the bytes of tensors alive in this process that neither `learner` nor `others` lead to.

    Other people's modules are passed over: torch and its like hold constants of their own.
    """
    known = {
        tensor.untyped_storage().data_ptr() for root in (learner, others) for _, tensor in _tensors(root, "", set())
    }
    alive: dict[int, int] = {}
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # asking some lazy object of another package for its type may warn
        for thing in gc.get_objects():
            if isinstance(thing, Tensor):
                alive[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
    return sum(size for where, size in alive.items() if where not in known)


def _tensors(thing: Any, path: str, seen: set[int]) -> Iterator[tuple[str, Tensor]]:
    if isinstance(thing, Tensor):
        yield path, thing
        return
    if id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, dict):
        inside = list(thing.items())
    elif isinstance(thing, list | tuple):
        inside = list(enumerate(thing))
    elif type(thing).__module__.startswith("edge_sac"):
        slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
        inside = [(name, getattr(thing, name)) for name in slots if hasattr(thing, name)]
        inside += list(getattr(thing, "__dict__", {}).items())
    else:
        return
    for name, value in inside:
        yield from _tensors(value, f"{path}.{name}" if path else str(name), seen)
