"""What a trained run leaves for its user: the policy file, its judgement, the report, and how to go on."""

from __future__ import annotations

from pathlib import Path

import msgspec
from rich.console import Console

from edge_sac import __version__
from edge_sac.agent import actor_shape, policy_weights
from edge_sac.checkpoint import load_checkpoint
from edge_sac.commands.evaluate import judge
from edge_sac.commands.json_file import write_json
from edge_sac.commands.terminal import command, tensorboard
from edge_sac.contract import Training
from edge_sac.errors import Refused
from edge_sac.export import export_policy
from edge_sac.metrics import FILE as METRICS
from edge_sac.metrics import read_metrics
from edge_sac.run_folder import CONFIG, EVALUATION, POLICY, REPORT, read_run

JUDGED_EPISODES = 10


def deliver(run: Path, console: Console) -> int:
    """Export the best policy, judge it on fresh episodes, draw the report, say where all is; return 0."""
    which = export_run(run, run / POLICY)
    judgement = judge(run / POLICY, JUDGED_EPISODES, read_run(run)[0])
    write_json(run / EVALUATION, judgement.record())
    try:
        # Only now: matplotlib holds 30 MiB that a learner need not carry through its run.
        from edge_sac.plots import report_figure, save_figure

        save_figure(report_figure(read_metrics(run)), run / REPORT)
    except OSError as error:
        raise Refused(f"cannot write {run / REPORT}: {error}; make room, then: {command('resume', run)}") from error
    lines = [
        f"{run / POLICY}: {which}; {judgement.line()}",
        f"{run / REPORT}: return, success, temperature and loss scale over the run",
        f"{run / EVALUATION}: each of those episodes",
        f"{run / CONFIG}: every setting; trains the same again with train --config",
        f"{run / METRICS}: the numbers over the run; as pictures in a browser:",
        f"  {tensorboard(run)}",
        "Drive the policy:",
        f"  {command('eval', run / POLICY)}",
        "Train on:",
        f"  {command('resume', run, '--steps', '20000')}",
    ]
    for line in lines:
        console.print(line)
    return 0


def export_run(run: Path, path: Path, *, last: bool = False) -> str:
    """Write the run's best evaluated policy to `path`, or the last one; return which, as a phrase.

    A run that was never evaluated has only a last one. Raises Refused before the first transition, PolicyError when
    the policy is not at parity.
    """
    config, start = read_run(run)
    step, tensors, state = load_checkpoint(run)
    if "recorded" not in tensors:
        raise Refused(f"{run} has not seen a single step; train it first: {command('resume', run)}")
    best_step = int(state["counters"]["best_step"])
    last = last or best_step < 0
    weights = {name.removeprefix("best."): value.numpy() for name, value in tensors.items() if name.startswith("best.")}
    hidden = tuple(config.agent.hidden)
    if last:
        shape = actor_shape(len(start.contract.observation), len(start.contract.action), hidden)
        weights |= policy_weights(shape, tensors["agent.actor.theta"])
    contract = msgspec.structs.replace(
        start.contract,
        precision=config.precision,
        hidden=hidden,
        training=Training(
            steps=step if last else best_step,
            seed=config.seed,
            version=__version__,
            command=f"edge-sac train --config {CONFIG}",
        ),
    )
    export_policy(path, weights, contract, tensors["recorded"].numpy())
    return f"the last policy, of step {step}" if last else f"the best evaluated policy, of step {best_step}"
