"""Recording operations as CUDA graphs (not measured on a GPU yet)."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch


class CudaRecorder:
    """Records on a stream of its own; all graphs share one pool, since none needs what another left in it."""

    def __init__(self, device: torch.device, generator: torch.Generator) -> None:
        """`generator` is the one that random numbers in the calls are drawn from: each replay moves it on."""
        self._generator = generator
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def warm(self, call: Callable[[], None]) -> None:
        """Make a call on the stream, in order with everything else."""
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            call()
        current.wait_stream(self._stream)

    def record(self, call: Callable[[], None]) -> Callable[[], None]:
        """Return the replay of a graph of the call."""
        graph = torch.cuda.CUDAGraph()
        with warnings.catch_warnings():
            # Later versions register a generator when it is first used, and deprecate being told.
            warnings.simplefilter("ignore")
            graph.register_generator_state(self._generator)
        # Other threads write to the disk and may go on meanwhile.
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
            call()
        replay: Callable[[], None] = graph.replay
        return replay


def recorder_for(device: torch.device, generator: torch.Generator) -> CudaRecorder | None:
    """Return what records on a device: nothing on a CPU, nor with a torch that cannot record random numbers (< 2.4)."""
    if device.type != "cuda" or not hasattr(torch.cuda.CUDAGraph, "register_generator_state"):
        return None
    return CudaRecorder(device, generator)
