"""How OpenMP's idle threads wait: asleep, not spinning. It must be said before the library is loaded, so no torch here.

Between two parallel regions the threads of a team spin, by default for milliseconds, on cores that something else may
need: beside a process that holds one of two cores, an update on two threads was measured 13 to 80 times slower. Put
to sleep they cost some microseconds a region. libgomp, which torch's own wheels bring, and LLVM's libomp both read
OMP_WAIT_POLICY; KMP_BLOCKTIME is libomp's and Intel's time of spinning.
"""

from __future__ import annotations

from collections.abc import MutableMapping

PASSIVE = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
USERS = (*PASSIVE, "GOMP_SPINCOUNT", "KMP_LIBRARY")
"""Whoever sets one of these has chosen, and is left alone."""


def wait_passively(environment: MutableMapping[str, str]) -> bool:
    """Let OpenMP libraries that are yet to be loaded put idle threads to sleep; return whether that was left to us."""
    if any(name in environment for name in USERS):
        return False
    environment.update(PASSIVE)
    return True
