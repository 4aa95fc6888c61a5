"""Twins of the robots: equations of motion, and PyBullet where it is installed."""
