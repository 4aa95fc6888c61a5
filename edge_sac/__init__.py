"""Soft Actor-Critic in half precision, on the robot's own computer."""

__version__ = "0.1.0"
