"""Recognising that memory ran out, whatever says so.

torch raises a class of its own when its CUDA allocator finds no memory, but what CUDA and its libraries take for
themselves fails as a RuntimeError with a status in its words. On a Jetson even the allocator's own case ends as an
internal assertion: it asks NVML how much memory there is, which an integrated GPU does not answer.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator

_CLASS = "OutOfMemoryError"
"""torch's, by name: it has moved between modules, and nothing here needs torch."""
_WORDS = re.compile(
    "|".join(
        (
            r"\bout of memory\b",
            r"\bcudaErrorMemoryAllocation\b",
            # cuBLAS, cuDNN, cuSOLVER, cuSPARSE
            r"\bCU[A-Z]+_STATUS_\w*ALLOC\w*_FAILED\b",
            r"NVML_SUCCESS == r INTERNAL ASSERT FAILED",
            # The Jetson's memory driver
            r"\bNvMapMem\w*:? .*\berror\b",
            r"DefaultCPUAllocator: (can't allocate|not enough) memory",
            # ONNX Runtime's arena
            r"Failed to allocate memory for requested buffer",
            r"\bbad_alloc\b|\bbad allocation\b",
        )
    )
)


def words_of(error: BaseException) -> str:
    """Return the line that tells that memory ran out, of `error` or what caused it; empty when nothing does."""
    for link in _causes(error):
        text = str(link)
        found = _WORDS.search(text) if _speaks(link) else None
        if found or _is_of_memory(link):
            begin = text.rfind("\n", 0, found.start()) + 1 if found else 0
            return text[begin:].partition("\n")[0].strip() or type(link).__name__
    return ""


def _is_of_memory(error: BaseException) -> bool:
    named = any(kind.__name__ == _CLASS for kind in type(error).__mro__)
    full = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return named or full or isinstance(error, MemoryError)


def _speaks(error: BaseException) -> bool:
    """Return whether the words of an error of this kind come from a library, not from a user's input."""
    return isinstance(error, RuntimeError) or type(error).__module__.startswith("onnxruntime")


def _causes(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or link.__context__
