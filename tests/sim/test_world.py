"""The PyBullet world: nothing leaks, nothing is left of PyBullet's own ideas of damping."""

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from robots.errors import SpecError
from sim.registration import ASSETS, make_env
from sim.world import World

pybullet = pytest.importorskip("pybullet")
ASSET = ASSETS / "furuta.urdf"
JOINTS = ("arm", "pendulum")


def clients() -> int:
    """Return the number of connected clients among all that can exist."""
    return sum(pybullet.isConnected(physicsClientId=client) for client in range(1024))


def test_fifty_environments_opened_and_closed_leave_no_client() -> None:
    before = clients()
    for _ in range(50):
        env = make_env("furuta", physics="pybullet")
        env.reset(seed=0)
        assert clients() == before + 1
        env.close()
    assert clients() == before


def test_a_second_close_does_not_close_another_worlds_client() -> None:
    first = World(ASSET, JOINTS, 0.001)
    first.close()
    second = World(ASSET, JOINTS, 0.001)
    first.close()
    second.advance((0.0, 0.0))
    second.close()


def test_a_world_nobody_closed_is_disconnected_when_it_goes() -> None:
    before = clients()
    world = World(ASSET, JOINTS, 0.001)
    del world
    gc.collect()
    assert clients() == before


def test_a_refused_asset_leaves_no_client(tmp_path: Path) -> None:
    before = clients()
    with pytest.raises(SpecError, match=r"movable joints are \['arm', 'pendulum'\].*\['arm', 'leg'\]"):
        World(ASSET, ("arm", "leg"), 0.001)
    broken = tmp_path / "broken.urdf"
    broken.write_text("not a robot")
    with pytest.raises(SpecError, match=r"broken\.urdf"):
        World(broken, JOINTS, 0.001)
    assert clients() == before


def test_two_worlds_do_not_disturb_each_other() -> None:
    alone = World(ASSET, JOINTS, 0.001)
    alone.place((0.0, 1.0), (0.0, 0.0))
    for _ in range(100):
        alone.advance((0.01, 0.0))
    expected = alone.positions
    other = World(ASSET, JOINTS, 0.001)
    alone.place((0.0, 1.0), (0.0, 0.0))
    other.place((0.0, -2.0), (3.0, 0.0))
    for _ in range(100):
        alone.advance((0.01, 0.0))
        other.advance((-0.02, 0.0))
    assert alone.positions == expected
    alone.close()
    other.close()


@pytest.mark.parametrize("kind", ["damping", "friction"])
def test_friction_in_a_urdf_is_refused_where_the_robots_file_has_its_own(tmp_path: Path, kind: str) -> None:
    damped = tmp_path / "damped.urdf"
    axis = '<axis xyz="1 0 0"/>'
    damped.write_text(ASSET.read_text().replace(axis, f'{axis}<dynamics {kind}="0.01"/>'))
    with pytest.raises(SpecError, match=rf"damped\.urdf: joint pendulum has .*{kind} = 0\.01.*sim\.friction"):
        World(damped, JOINTS, 0.001)


def test_a_spinning_pendulum_is_neither_damped_nor_limited() -> None:
    world = World(ASSET, JOINTS, 0.001)
    # 150 rad/s is beyond PyBullet's own limit of 100; the arm turns along, since the two are coupled.
    world.place((0.0, 0.0), (0.0, 150.0))
    peak = 0.0
    for _ in range(500):
        world.advance((0.0, 0.0))
        peak = max(peak, abs(world.speeds[1]))
    world.close()
    assert peak > 145.0


def test_importing_pybullet_writes_nothing_and_leaves_standard_error_open() -> None:
    script = (
        "import sys; from pathlib import Path; from sim.world import World; "
        "World(Path(sys.argv[1]), ('arm', 'pendulum'), 0.001).close(); print('after', file=sys.stderr)"
    )
    command = [sys.executable, "-c", script, str(ASSET)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == ("", "after\n")
