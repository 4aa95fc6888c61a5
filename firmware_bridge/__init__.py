"""Bytes between the host and the robot's microcontroller."""
