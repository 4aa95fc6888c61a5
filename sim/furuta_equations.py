"""The Furuta pendulum's equations of motion, float64, independent of any physics engine.

With arm angle t, pendulum angle a (0 hangs), L the arm's length, l from the pendulum's pivot to its centre of
mass, m its mass and I its inertia about its centre, J the arm's inertia about the motor axis, the kinetic
energy is

  (J + m L^2 + Izz + B sin^2 a) t'^2 / 2 + C cos a t' a' + D a'^2 / 2,
  B = m l^2 + Iyy - Izz,  C = m L l,  D = m l^2 + Ixx,

and the potential energy -m g l cos a. Lagrange's equations of these two follow, derived by hand.
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from xml.etree import ElementTree

from robots.errors import SpecError
from sim.gravity import GRAVITY

Motion: TypeAlias = tuple[float, float, float, float]
"""Arm angle, pendulum angle [rad], arm speed, pendulum speed [rad/s]."""


@dataclass(frozen=True, slots=True)
class FurutaBody:
    """The constants of the equations."""

    arm: float
    """J + m L^2 + Izz [kg m^2]"""
    lift: float
    """B [kg m^2]"""
    coupling: float
    """C [kg m^2]"""
    pendulum: float
    """D [kg m^2]"""
    weight: float
    """m g l [N m]"""


def furuta_body(asset: Path) -> FurutaBody:
    """Return the constants from the URDF's masses, lengths and inertias. Raises SpecError."""
    try:
        root = ElementTree.parse(asset).getroot()
        arm_mass, arm_x, arm_inertia = _link(root, "arm_link", "x")
        mass, drop, inertia = _link(root, "pendulum_link", "z")
        pivot = root.find("joint[@name='pendulum']/origin")
        assert pivot is not None
        length = float(pivot.attrib["xyz"].split()[0])
    except (OSError, ElementTree.ParseError, KeyError, ValueError, AssertionError) as error:
        raise SpecError(
            f"{asset}: not the URDF of a Furuta pendulum with arm_link and pendulum_link: {error!r}"
        ) from error
    return FurutaBody(
        arm=arm_inertia["izz"] + arm_mass * arm_x**2 + mass * length**2 + inertia["izz"],
        lift=mass * drop**2 + inertia["iyy"] - inertia["izz"],
        coupling=mass * length * -drop,
        pendulum=mass * drop**2 + inertia["ixx"],
        weight=mass * GRAVITY * -drop,
    )


def _link(root: ElementTree.Element, name: str, axis: str) -> tuple[float, float, dict[str, float]]:
    """Return mass, centre of mass along axis, and inertias of a link."""
    inertial = root.find(f"link[@name='{name}']/inertial")
    assert inertial is not None, name
    mass, origin, inertia = inertial.find("mass"), inertial.find("origin"), inertial.find("inertia")
    assert mass is not None, name
    assert origin is not None, name
    assert inertia is not None, name
    place = float(origin.attrib["xyz"].split()["xyz".index(axis)])
    return float(mass.attrib["value"]), place, {key: float(value) for key, value in inertia.attrib.items()}


def accelerations(body: FurutaBody, motion: Motion, arm_torque: float, pendulum_torque: float) -> tuple[float, float]:
    """Return arm and pendulum acceleration [rad/s^2] under torques [N m] at the two joints."""
    _, angle, arm_speed, speed = motion
    sine, cosine = math.sin(angle), math.cos(angle)
    twist = body.lift * sine * cosine * arm_speed
    m11 = body.arm + body.lift * sine * sine
    m12 = body.coupling * cosine
    f1 = arm_torque - 2.0 * twist * speed + body.coupling * sine * speed * speed
    f2 = pendulum_torque + twist * arm_speed - body.weight * sine
    scale = 1.0 / (m11 * body.pendulum - m12 * m12)
    return (body.pendulum * f1 - m12 * f2) * scale, (m11 * f2 - m12 * f1) * scale


def advance(body: FurutaBody, motion: Motion, arm_torque: float, pendulum_torque: float, dt: float) -> Motion:
    """Return the motion dt [s] later under constant torques, by one fourth-order Runge-Kutta step."""
    t, a, u, v = motion
    half = 0.5 * dt
    u1, v1 = accelerations(body, motion, arm_torque, pendulum_torque)
    ub, vb = u + half * u1, v + half * v1
    u2, v2 = accelerations(body, (t, a + half * v, ub, vb), arm_torque, pendulum_torque)
    uc, vc = u + half * u2, v + half * v2
    u3, v3 = accelerations(body, (t, a + half * vb, uc, vc), arm_torque, pendulum_torque)
    ud, vd = u + dt * u3, v + dt * v3
    u4, v4 = accelerations(body, (t, a + dt * vc, ud, vd), arm_torque, pendulum_torque)
    sixth = dt / 6.0
    return (
        t + sixth * (u + 2.0 * (ub + uc) + ud),
        a + sixth * (v + 2.0 * (vb + vc) + vd),
        u + sixth * (u1 + 2.0 * (u2 + u3) + u4),
        v + sixth * (v1 + 2.0 * (v2 + v3) + v4),
    )


def energy(body: FurutaBody, motion: Motion) -> float:
    """Return kinetic plus potential energy [J], 0 for hanging at rest."""
    _, angle, arm_speed, speed = motion
    sine, cosine = math.sin(angle), math.cos(angle)
    kinetic = (
        0.5 * (body.arm + body.lift * sine * sine) * arm_speed**2
        + body.coupling * cosine * arm_speed * speed
        + 0.5 * body.pendulum * speed**2
    )
    return kinetic + body.weight * (1.0 - cosine)
