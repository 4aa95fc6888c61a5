"""What a robot is, and which ones we drive: numpy and msgspec, never torch; Gymnasium in env.py alone."""
