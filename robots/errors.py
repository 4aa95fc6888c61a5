"""What can go wrong between a policy and a robot, one class for each kind of answer the user gets."""


class RobotError(Exception):
    """Base of every error this package raises on purpose."""


class SpecError(RobotError):
    """A robot's description, or the physics asked for it, is refused; the message names key and value."""


class UnsafeCommand(RobotError):
    """A command cannot be made safe, so nothing was sent to the robot."""


class SensorFault(RobotError):
    """A reading is not a number; the message names the channel, and no observation was made of it."""


class LinkLost(RobotError):
    """The robot no longer answers in time."""
