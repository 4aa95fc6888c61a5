"""The energy that a machine or a board has used, where a sensor can be read: RAPL, INA3221 or NVML."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

SYS = Path("/sys")
NOT_READABLE = "not readable"
SAMPLE_S = 0.02
"""Between two readings of a power sensor; an INA3221 averages over a few ms."""
BOARD_INPUTS = ("VDD_IN", "POM_5V_IN", "VIN_SYS_5V0")
"""What Jetson boards call the rail that feeds all others."""


class Meter(Protocol):
    """Counts energy from some moment on."""

    name: str
    """What the sensor is and what it sees."""

    def joules(self) -> float:
        """Return the energy used so far [J]."""

    def close(self) -> None:
        """Stop counting; a second call does nothing."""


def find_meter(device: str, sys: Path = SYS) -> Meter | None:
    """Return a meter for work on `device`, or None where nothing can be read.

    A GPU's own for CUDA; else a Jetson's board sensor (which sees the GPU too) or the processor's.
    """
    if device == "cuda":
        gpu = _nvml()
        if gpu is not None:
            return gpu
    rails = _board_rails(sys)
    if rails:
        return PowerMeter(f"INA3221 ({', '.join(rail.name for rail in rails)})", lambda: sum(map(_watts, rails)))
    packages = _packages(sys) if device == "cpu" else []
    return RaplMeter(packages) if packages else None


class RaplMeter:
    """The energy counters of all processor packages, which wrap."""

    name = "RAPL (processor packages)"

    def __init__(self, packages: Sequence[Path]) -> None:
        self._packages = list(packages)
        self._ranges = [_number(package / "max_energy_range_uj") for package in packages]
        self._last = self._read()
        self._joules = 0.0

    def _read(self) -> list[float]:
        return [_number(package / "energy_uj") for package in self._packages]

    def joules(self) -> float:
        """Return the energy used since the meter was made [J]; ask more often than the counters wrap (minutes)."""
        now = self._read()
        for new, old, span in zip(now, self._last, self._ranges, strict=True):
            self._joules += (new - old if new >= old else new - old + span) * 1e-6
        self._last = now
        return self._joules

    def close(self) -> None:
        """Do nothing: there is nothing to let go of."""


class PowerMeter:
    """Integrates a power sensor [W] on a thread of its own."""

    def __init__(self, name: str, watts: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        self.name = name
        self._watts, self._clock = watts, clock
        self._lock = threading.Lock()
        self._joules, self._power, self._at = 0.0, watts(), clock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="power meter")
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self.joules()

    def joules(self) -> float:
        """Return the energy used since the meter was made [J], by the trapezoidal rule."""
        with self._lock:
            power, now = self._watts(), self._clock()
            self._joules += 0.5 * (self._power + power) * (now - self._at)
            self._power, self._at = power, now
            return self._joules

    def close(self) -> None:
        """End the thread; a second call does nothing."""
        self._ended.set()
        self._thread.join(1.0)


class NvmlMeter:
    """The first GPU's own energy counter."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        self.name = "NVML (GPU)"
        self.joules()

    def joules(self) -> float:
        """Return the energy used since the driver was loaded [J]."""
        return float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)) * 1e-3

    def close(self) -> None:
        """Let go of the library; a second call does nothing."""
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
            self._nvml = None


def _nvml() -> Meter | None:
    """Return the GPU's meter, or None without the library, a GPU or a counter (a Jetson's has none)."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
        return NvmlMeter(pynvml, pynvml.nvmlDeviceGetHandleByIndex(0))
    except pynvml.NVMLError:
        return None


class _Rail:
    """One channel of an INA3221: voltage [mV] and current [mA]."""

    def __init__(self, folder: Path, channel: int) -> None:
        self.name = (folder / f"in{channel}_label").read_text().strip()
        self.voltage, self.current = folder / f"in{channel}_input", folder / f"curr{channel}_input"


def _watts(rail: _Rail) -> float:
    return _number(rail.voltage) * _number(rail.current) * 1e-6


def _board_rails(sys: Path) -> list[_Rail]:
    """Return the rail that feeds the board, or where none is named so, all there are."""
    rails = []
    for folder in sorted((sys / "class/hwmon").glob("hwmon*")):
        try:
            if (folder / "name").read_text().strip() != "ina3221":
                continue
        except OSError:
            continue
        for channel in (1, 2, 3):
            try:
                rail = _Rail(folder, channel)
                _watts(rail)
            except (OSError, ValueError):  # an unused channel, or one that only root may read
                continue
            rails.append(rail)
    return [rail for rail in rails if rail.name in BOARD_INPUTS][:1] or rails


def _packages(sys: Path) -> list[Path]:
    """Return the RAPL zones of whole packages that can be read; zones within them would count twice."""
    found = []
    for zone in sorted((sys / "class/powercap").glob("*-rapl:*")):
        try:
            if (zone / "name").read_text().startswith("package"):
                _number(zone / "energy_uj")
                _number(zone / "max_energy_range_uj")
                found.append(zone)
        except (OSError, ValueError):  # since 2020 the counters are root's alone on most systems
            continue
    return found


def _number(path: Path) -> float:
    return float(path.read_text())
