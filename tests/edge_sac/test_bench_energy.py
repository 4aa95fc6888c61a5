"""Energy comes from the sensor that sees the work, counted right over a wrap; where none is, that is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge_sac.commands.bench.energy import PowerMeter, find_meter


def write(folder: Path, **files: object) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(f"{content}\n")
    return folder


def rapl(sys: Path, zone: str, name: str, energy: int = 0, span: int = 1_000_000) -> Path:
    return write(sys / "class/powercap" / zone, name=name, energy_uj=energy, max_energy_range_uj=span)


def ina(sys: Path, number: int, **rails: tuple[int, int]) -> None:
    folder = write(sys / f"class/hwmon/hwmon{number}", name="ina3221")
    for channel, (label, (mv, ma)) in enumerate(rails.items(), 1):
        write(folder, **{f"in{channel}_label": label, f"in{channel}_input": mv, f"curr{channel}_input": ma})


def test_nothing_is_found_where_there_is_no_sensor(tmp_path):
    assert find_meter("cpu", tmp_path) is None


def test_packages_are_summed_their_parts_are_not_and_a_wrap_is_no_loss(tmp_path):
    first = rapl(tmp_path, "intel-rapl:0", "package-0", energy=900_000)
    second = rapl(tmp_path, "intel-rapl:1", "package-1", energy=0)
    rapl(tmp_path, "intel-rapl:0:0", "core", energy=5)
    rapl(tmp_path, "intel-rapl:2", "psys", energy=5)
    meter = find_meter("cpu", tmp_path)
    assert meter is not None
    assert meter.joules() == 0
    write(first, energy_uj=100_000)  # wrapped at a million: 0.2 J
    write(second, energy_uj=500_000)
    assert meter.joules() == pytest.approx(0.7, abs=1e-12)  # sums of binary fractions
    assert meter.joules() == pytest.approx(0.7, abs=1e-12)
    meter.close()


def test_counter_that_may_not_be_read_is_none(tmp_path):
    (rapl(tmp_path, "intel-rapl:0", "package-0") / "energy_uj").unlink()
    (tmp_path / "class/powercap/intel-rapl:0/energy_uj").mkdir()  # even root cannot read it
    assert find_meter("cpu", tmp_path) is None


@pytest.mark.parametrize(
    ("rails", "watts"),
    [
        pytest.param({"VDD_IN": (5000, 2000), "VDD_CPU_GPU_CV": (5000, 800)}, 10.0, id="the rail that feeds all"),
        pytest.param({"GPU": (5000, 100), "CPU": (5000, 300)}, 2.0, id="the sum of all where none does"),
    ],
)
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_board_sensor_is_read_for_both_devices_before_the_processors(tmp_path, rails, watts, device, monkeypatch):
    monkeypatch.setattr("edge_sac.commands.bench.energy._nvml", lambda: None)
    write(tmp_path / "class/hwmon/hwmon0", name="coretemp")
    ina(tmp_path, 1, **rails)
    rapl(tmp_path, "intel-rapl:0", "package-0")
    meter = find_meter(device, tmp_path)
    assert isinstance(meter, PowerMeter)
    meter.close()
    assert "INA3221" in meter.name
    assert meter._watts() == pytest.approx(watts, rel=1e-12)


def test_power_is_integrated_by_trapezoids():
    now, power = [0.0], [4.0]
    meter = PowerMeter("test", lambda: power[0], lambda: now[0])
    meter.close()  # its thread would read between the two assignments
    begun = meter.joules()
    now[0], power[0] = 2.0, 6.0
    assert meter.joules() - begun == 10
    meter.close()
