"""Whether this installation can do its work: one line for each thing tried, with the command that mends it.

Nothing is taken on a version number's word where it can be tried: matrices are multiplied on the device and
compared with float64, and a graph is run on the execution provider that was asked for.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edge_sac import openmp
from edge_sac.memory_available import Memory, available_memory

if TYPE_CHECKING:
    import torch

DISTRIBUTION = "edge-sac"
OBS, ACTION = 6, 1
"""About the Furuta pendulum's, for a usual update."""
PACKAGES = ("edge_sac", "firmware_bridge", "robots", "sim")
PYTHONS = ((3, 10), (3, 13))
# torch with ONNX Runtime and the default run is resident in somewhat under this.
MEMORY_NEEDED = 512 * 2**20
# The default run with its replay and checkpoints, several times over.
DISK_NEEDED = 512 * 2**20
TORCH_REMEDY = "pip install 'edge-sac[train]' (on a Jetson: the torch wheel of its JetPack release)"
RUNTIME_REMEDY = "pip install 'edge-sac[cpu]' (with an NVIDIA GPU on x86-64: 'edge-sac[gpu]', not both)"


@dataclass(frozen=True)
class Line:
    """One check: its name, whether it holds, what was found, and the command that mends it.

    A line that is not required is a warning when it does not hold: something optional is missing.
    """

    name: str
    ok: bool
    message: str
    remedy: str = ""
    required: bool = True

    @property
    def failed(self) -> bool:
        """Whether the installation cannot do its work because of this line."""
        return self.required and not self.ok


def doctor_lines(runs: Path = Path("runs")) -> list[Line]:
    """Return every check of this installation, in the order in which they depend on each other.

    `runs` is the folder that runs are written to; it need not exist and is not made.
    """
    lines = [python_line(sys.version_info[:2])]
    lines += ownership_lines(metadata.packages_distributions())
    lines += _tried("torch", TORCH_REMEDY, torch_lines)
    lines += _tried("onnxruntime", RUNTIME_REMEDY, runtime_lines)
    lines += _tried("physics", "pip install 'edge-sac[sim]'", physics_lines)
    lines.append(memory_line(available_memory()))
    lines.append(disk_line(runs, shutil.disk_usage(_nearest_folder(runs)).free))
    lines.append(writable_line(runs))
    return lines


def _tried(name: str, remedy: str, check: Callable[[], Iterable[Line]]) -> Iterator[Line]:
    """Return the lines of a check; an error it meets becomes its last line.

    Every exception counts here: whatever a broken library raises is the finding.
    """
    try:
        yield from check()
    except Exception as error:
        yield Line(name, False, f"{type(error).__name__}: {error}", remedy)


def python_line(version: tuple[int, int]) -> Line:
    """Return whether a Python of this (major, minor) is supported."""
    lowest, highest = (".".join(map(str, bound)) for bound in PYTHONS)
    found = ".".join(map(str, version))
    remedy = f"python3.11 -m venv .venv && .venv/bin/pip install '{DISTRIBUTION}[train,cpu]'"
    supported = PYTHONS[0] <= version <= PYTHONS[1]
    text = f"{found} on {platform.machine()}" if supported else f"{found}: expected {lowest} to {highest}"
    return Line("python", supported, text, "" if supported else remedy)


def ownership_lines(owners: Mapping[str, list[str]]) -> list[Line]:
    """Return, for each of our import names, whether our distribution alone installed it.

    `owners` maps import names to distributions. `robots` and `sim` are also names of other projects, and
    whichever is installed last overwrites the other without a word.
    """
    lines = []
    for package in PACKAGES:
        others = sorted({owner for owner in owners.get(package, []) if _normal(owner) != DISTRIBUTION})
        if others:
            remedy = f"pip uninstall {' '.join(others)} && pip install --force-reinstall --no-deps {DISTRIBUTION}"
            message = f"also written by {', '.join(others)}, which may have overwritten ours"
            lines.append(Line(f"name {package}", False, message, remedy))
        elif package in owners:
            lines.append(Line(f"name {package}", True, f"owned by {DISTRIBUTION} alone"))
        else:
            lines.append(Line(f"name {package}", True, "imported from a folder, not installed"))
    return lines


def torch_lines() -> Iterator[Line]:
    """Return what torch is, where it computes, and whether its products there are right."""
    if importlib.util.find_spec("torch") is None:
        yield Line("torch", False, "not installed: policies run, nothing trains", TORCH_REMEDY, required=False)
        return
    import torch

    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    where = torch.cuda.get_device_name(device) if cuda else f"{torch.get_num_threads()} CPU threads"
    yield Line("torch", True, f"{torch.__version__} on {device.type} ({where})")
    if not cuda and nvidia_device():
        message = "an NVIDIA GPU is here, but this torch does not reach it"
        yield Line("torch device", False, message, TORCH_REMEDY, required=False)
    yield product_line(torch.float32, device)
    yield product_line(torch.float16, device)

    from edge_sac.config import Config
    from edge_sac.free_cores import measure_cores
    from edge_sac.half_matmul import probe
    from edge_sac.precision import precision_of
    from edge_sac.threads import probe_threads

    cores = measure_cores()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        path = probe(device, torch.float16)
    finally:
        torch.set_num_threads(threads)
    yield Line("fp16 path", True, path.reason)
    if device.type == "cpu":
        usual = Config()
        chosen = probe_threads(OBS, ACTION, usual.agent, precision_of(usual), path, cores)
        yield Line(
            "threads", True, f"{chosen.count} for an update of {OBS} observations: {chosen.reason}; {_waiting()}"
        )


def _waiting() -> str:
    """Return how OpenMP's idle threads wait, as its environment says."""
    said = [f"{name}={os.environ[name]}" for name in openmp.USERS if name in os.environ]
    return f"idle threads wait as {', '.join(said)} says" if said else "idle threads spin"


def product_line(dtype: torch.dtype, device: torch.device) -> Line:
    """Return whether a product of [64, 64] matrices of `dtype` on `device` agrees with float64.

    The bound is the usual one of a dot product of n terms accumulated with unit roundoff u,
    n * u * (|A| |B|), plus the rounding of the result to the operands' dtype.
    """
    import torch

    size = 64
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(size, size, generator=generator).to(dtype) for _ in range(2))
    product = (a.to(device) @ b.to(device)).cpu().double().numpy()
    left, right = a.double().numpy(), b.double().numpy()
    bound = (size * 2.0**-23 + torch.finfo(dtype).eps) * (np.abs(left) @ np.abs(right))
    error = float(np.max(np.abs(product - left @ right) / bound))
    name = f"{'fp16' if dtype == torch.float16 else 'fp32'} product"
    if error <= 1.0:
        return Line(name, True, f"right on {device.type} (error {error:.2f} of its bound)")
    return Line(name, False, f"wrong on {device.type}: error {error:.3g} times its bound", TORCH_REMEDY)


def nvidia_device() -> bool:
    """Return whether the kernel shows an NVIDIA GPU, of a PC or of a Jetson."""
    return any(Path(node).exists() for node in ("/dev/nvidia0", "/dev/nvhost-gpu", "/dev/nvgpu/igpu0"))


def runtime_lines() -> Iterator[Line]:
    """Return which ONNX Runtime is here and which execution provider really runs a graph."""
    installed = [name for name in ("onnxruntime", "onnxruntime-gpu") if _installed(name)]
    if len(installed) == 2:
        message = "onnxruntime and onnxruntime-gpu are both installed and have overwritten each other"
        extra = "gpu" if nvidia_device() else "cpu"
        remedy = f"pip uninstall onnxruntime onnxruntime-gpu && pip install 'edge-sac[{extra}]'"
        yield Line("onnxruntime", False, message, remedy)
        return
    if importlib.util.find_spec("onnxruntime") is None:
        yield Line("onnxruntime", False, "not installed: no policy can act", RUNTIME_REMEDY)
        return
    import onnxruntime

    yield Line("onnxruntime", True, f"{onnxruntime.__version__} ({' '.join(installed) or 'of the system'})")
    known = onnxruntime.get_available_providers()
    wanted = "CUDAExecutionProvider" if "CUDAExecutionProvider" in known else "CPUExecutionProvider"
    yield provider_line(wanted, *run_tiny_graph(wanted))


def provider_line(wanted: str, bound: list[str], result: float) -> Line:
    """Return whether the wanted provider was bound, and not another in silence, and computed 2 * 3 = 6."""
    if result != 6.0:
        return Line("provider", False, f"{bound[0]} computed 2 * 3 = {result:g}", RUNTIME_REMEDY)
    if bound[0] != wanted:
        remedy = "install the CUDA and cuDNN this onnxruntime-gpu names, or pip install 'edge-sac[cpu]' instead"
        return Line("provider", False, f"{wanted} was asked for, {bound[0]} was bound", remedy)
    return Line("provider", True, f"{wanted} runs a graph")


def run_tiny_graph(wanted: str) -> tuple[list[str], float]:
    """Return the providers that a session asked for `wanted` has bound, and 2 * 3 computed in it."""
    import onnxruntime
    from onnx import TensorProto, helper

    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1]) for name in ("a", "b", "product")]
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["product"])], "tiny", ports[:2], ports[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4  # the fallback is reported by our own line
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=[wanted])
    numbers = {"a": np.full((1, 1), 2, np.float32), "b": np.full((1, 1), 3, np.float32)}
    return session.get_providers(), float(session.run(["product"], numbers)[0].item())


def physics_lines() -> Iterator[Line]:
    """Return which physics the twins run on; the equations are always there."""
    from sim.registration import physics_available

    found = physics_available()
    if found["pybullet"] == "ok":
        yield Line("physics", True, f"PyBullet {metadata.version('pybullet')}, and equations of motion")
    elif pybullet_wheel():
        message = "PyBullet is not installed: the twins run on their equations of motion"
        yield Line("physics", False, message, found["pybullet"], required=False)
    else:
        here = f"Python {sys.version_info[0]}.{sys.version_info[1]} on {platform.machine()}"
        yield Line("physics", True, f"equations of motion (PyBullet has no wheel for {here})")


def pybullet_wheel() -> bool:
    """Return whether a PyBullet wheel exists for this machine; the `sim` extra carries the same condition."""
    return sys.platform == "linux" and platform.machine() == "x86_64" and sys.version_info < (3, 12)


def memory_line(available: Memory) -> Line:
    """Return whether the memory that can be had is enough to train the default robot."""
    enough = available.bytes >= MEMORY_NEEDED
    found = f"{_mib(available.bytes)} can be had ({available.source})"
    message = found + ("" if enough else f", {_mib(MEMORY_NEEDED)} needed; edge-sac plan says for what")
    return Line(
        "memory",
        enough,
        message,
        "" if enough else "close other programs (largest first: ps aux --sort=-rss)",
    )


def disk_line(runs: Path, free: int) -> Line:
    """Return whether `free` bytes of disk are enough for a run in `runs`."""
    enough = free >= DISK_NEEDED
    message = f"{_mib(free)} free for {runs}/" + ("" if enough else f", {_mib(DISK_NEEDED)} needed")
    remedy = f"delete old runs (du -sh {runs}/*), or train with --out on another disk"
    return Line("disk", enough, message, "" if enough else remedy)


def writable_line(runs: Path) -> Line:
    """Return whether runs can be written to `runs`, tried with a file where the folder exists."""
    folder = _nearest_folder(runs)
    try:
        if folder == runs:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"\0")
        elif not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"no permission to make {runs} in {folder.absolute()}")
    except OSError as error:
        remedy = f'sudo chown -R "$USER" {folder}, or train with --out in another folder'
        return Line("runs", False, f"{runs}/ cannot be written: {error}", remedy)
    return Line("runs", True, f"{runs}/ can be written" if folder == runs else f"{runs}/ can be made")


def _nearest_folder(path: Path) -> Path:
    """Return `path`, or its nearest ancestor that exists."""
    return next(folder for folder in (path, *path.parents, Path("/")) if folder.exists())


def _installed(distribution: str) -> bool:
    """Return whether a distribution of this name is installed."""
    try:
        metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _normal(distribution: str) -> str:
    """Return a distribution's name as package indexes compare it."""
    return distribution.lower().replace("_", "-").replace(".", "-")


def _mib(count: int) -> str:
    return f"{count / 2**20:.0f} MiB"
