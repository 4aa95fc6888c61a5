"""Stable-Baselines3's SAC: torch, one operator at a time."""

from __future__ import annotations

from edge_sac.commands.bench.candidate import Candidate, Stages, Work


def build(work: Work) -> Candidate:
    """Return its learner; `train` is one update of both critics, actor, temperature and target."""
    stages = Stages()
    import torch

    stages.passed("torch")
    import stable_baselines3

    stages.passed("imports")
    from edge_sac.commands.bench.peers.baselines import candidate

    torch.set_num_threads(work.threads)
    versions = {"stable-baselines3": stable_baselines3.__version__, "torch": torch.__version__}
    made = candidate(stable_baselines3.SAC, work, stages, versions, device=work.device)
    if work.device == "cuda":
        made.wait = torch.cuda.synchronize
        made.report = lambda: {"cuda_peak": torch.cuda.max_memory_allocated()}
    return made
