"""The one gravity of every twin."""

GRAVITY = 9.81
"""[m/s^2], downwards."""
