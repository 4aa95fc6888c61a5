"""SBX's SAC: the same interface as Stable-Baselines3, the update compiled by JAX."""

from __future__ import annotations

from edge_sac.commands.bench.candidate import Candidate, Stages, Work


def build(work: Work) -> Candidate:
    """Return its learner; `train` reads the losses back, so that each call is complete when it returns."""
    stages = Stages()
    import torch

    stages.passed("torch")
    import jax
    import sbx

    stages.passed("imports")
    from edge_sac.commands.bench.peers.baselines import candidate

    torch.set_num_threads(work.threads)
    versions = {"sbx-rl": sbx.__version__, "jax": jax.__version__}
    return candidate(sbx.SAC, work, stages, versions)
