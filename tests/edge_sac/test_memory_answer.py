"""When memory runs out the answer is one sentence that names what to shrink, the largest first."""

from __future__ import annotations

import pytest

from edge_sac.commands.memory_answer import answer, answered
from edge_sac.config import AgentConfig, Config
from edge_sac.errors import Refused, ReplayError

FULL = MemoryError("Unable to allocate 1 GiB")


def test_largest_comes_first_with_its_size(policy_case) -> None:
    contract = policy_case.contract
    told = answer(FULL, Config(device="cuda"), contract)
    assert told.startswith(
        "out of memory on cuda (Unable to allocate 1 GiB): close other programs, lower replay_capacity (1"
    )
    assert told.index("replay_capacity") < told.index("agent.batch (256: ") < told.index("agent.hidden ([128, 128]: ")
    assert told.endswith('or choose gradients = "in-place", storage = "u8", moments = "8bit"')
    large = AgentConfig(hidden=(2048, 2048))
    told = answer(FULL, Config(replay_capacity=1000, agent=large), contract)
    assert told.index("agent.hidden") < told.index("agent.batch") < told.index("replay_capacity")


def test_what_is_chosen_already_is_not_proposed(policy_case) -> None:
    lean = Config(storage="u8", moments="8bit", gradients="in-place")
    assert "choose" not in answer(FULL, lean, policy_case.contract)
    assert 'precision = "fp16"' in answer(FULL, Config(precision="fp32"), policy_case.contract)


def test_only_memory_is_answered_and_only_once(policy_case) -> None:
    config, contract = Config(), policy_case.contract
    assert answer(ValueError("out of memory"), config, contract) == ""
    already = ReplayError("a replay of 10 transitions needs more")
    already.__cause__ = FULL
    assert answer(already, config, contract) == ""
    with pytest.raises(Refused, match="lower replay_capacity"), answered(config, contract):
        raise FULL
    with pytest.raises(KeyError), answered(config, contract):
        raise KeyError("x")
