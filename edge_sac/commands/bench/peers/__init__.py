"""Other people's libraries as candidates, each measured on the work that ours does."""

PEERS = {
    "Stable-Baselines3": "sb3",
    "SBX": "sbx_learner",
}
"""The peers by name, with the module here that builds each."""


def module(name: str) -> str:
    """Return the full name of the module that builds the peer called `name`."""
    return f"{__name__}.{PEERS[name]}"
