"""What can go wrong in the learner, one class for each kind of answer the user gets."""


class EdgeSacError(Exception):
    """Base of every error this package raises on purpose."""


class Refused(EdgeSacError):
    """A user's input was refused before anything moved or was overwritten."""


class ConfigError(Refused):
    """A setting is unknown, of the wrong type or out of its range."""


class CheckpointError(Refused):
    """A checkpoint is missing, truncated or was changed after it was written."""


class PolicyError(Refused):
    """A policy file is damaged, or does not fit the robot it was given to."""


class MissingExtra(Refused):
    """An optional dependency is not installed; the message carries the line that installs it."""


class ReplayError(EdgeSacError):
    """A transition cannot be stored or sampled as asked."""


class NonFinite(EdgeSacError):
    """A NaN or an infinity came from the environment or the update; the run stops after saving."""
