"""The loss scale's state machine, all of it on the device."""

import pytest
import torch

from edge_sac.loss_scale import CEILING, FINITE_STEPS_TO_GROW, INITIAL, SKIPS_TO_GIVE_UP, LossScale

CPU = torch.device("cpu")
FINE, BAD = torch.tensor([True]), torch.tensor([False])
LARGEST = 65504.0


def scale_after(steps: list[torch.Tensor], peak: float = 1.0) -> LossScale:
    scale = LossScale(CPU, enabled=True)
    for finite in steps:
        scale.advance(finite, torch.tensor([peak]), LARGEST)
    return scale


def test_overflow_halves_the_scale_and_is_counted():
    scale = scale_after([FINE, BAD, FINE, BAD])
    assert float(scale.scale) == INITIAL / 4
    assert int(scale.skipped) == 2
    assert not bool(scale.exhausted)


def test_scale_doubles_after_more_than_10000_finite_steps_in_a_row():
    scale = LossScale(CPU, enabled=True)
    for _ in range(FINITE_STEPS_TO_GROW):
        scale.advance(FINE, torch.tensor([1.0]), LARGEST)
    assert float(scale.scale) == INITIAL
    scale.advance(FINE, torch.tensor([1.0]), LARGEST)
    assert float(scale.scale) == 2 * INITIAL
    scale.advance(FINE, torch.tensor([1.0]), LARGEST)
    assert float(scale.scale) == 2 * INITIAL


@pytest.mark.parametrize(("peak", "grows"), [(29_774.0, True), (29_776.0, False)])
def test_scale_grows_only_while_twice_the_moments_with_a_tenth_to_spare_stay_finite(peak, grows):
    scale = LossScale(CPU, enabled=True)
    scale.finite_streak.fill_(FINITE_STEPS_TO_GROW)
    scale.advance(FINE, torch.tensor([peak]), LARGEST)
    assert (float(scale.scale) > INITIAL) == grows


def test_scale_may_pass_65504():
    scale = LossScale(CPU, enabled=True)
    for _ in range(4):
        scale.finite_streak.fill_(FINITE_STEPS_TO_GROW)
        scale.advance(FINE, torch.tensor([1.0]), LARGEST)
    assert float(scale.scale) == 160_000


def test_skips_in_a_row_end_the_learner_and_a_finite_step_between_does_not():
    assert not bool(scale_after(([BAD] * 5 + [FINE]) * 2).exhausted)
    assert bool(scale_after([BAD] * SKIPS_TO_GIVE_UP).exhausted)


def test_scale_never_falls_below_one_and_says_when_it_would():
    scale = scale_after([BAD] * 13)
    assert float(scale.scale) == INITIAL / 2**13
    assert not bool(scale.exhausted)
    scale.advance(BAD, torch.tensor([1.0]), LARGEST)
    assert bool(scale.exhausted)
    for _ in range(100):
        scale.advance(BAD, torch.tensor([1.0]), LARGEST)
    assert float(scale.scale) == 1.0


def test_scale_has_a_ceiling_where_nothing_ever_overflows():
    scale = LossScale(CPU, enabled=True)
    for _ in range(200):
        scale.finite_streak.fill_(FINITE_STEPS_TO_GROW)
        scale.advance(FINE, torch.tensor([0.0]), LARGEST)
    assert float(scale.scale) == CEILING
    assert not bool(scale.exhausted)


def test_moment_that_is_lost_ends_the_learner_and_a_resume_revives_it():
    scale = LossScale(CPU, enabled=True)
    scale.advance(FINE, torch.tensor([float("inf")]), LARGEST)
    assert bool(scale.exhausted)
    scale.revive()
    assert not bool(scale.exhausted)


def test_revived_learner_has_all_its_skips_again():
    scale = LossScale(CPU, enabled=True)
    # So high that twenty halvings leave room above 1, which would end the learner sooner.
    scale.scale.fill_(CEILING)
    for _ in range(SKIPS_TO_GIVE_UP):
        scale.advance(BAD, torch.tensor([1.0]), LARGEST)
    scale.revive()
    for _ in range(SKIPS_TO_GIVE_UP - 1):
        scale.advance(BAD, torch.tensor([1.0]), LARGEST)
    assert not bool(scale.exhausted)


def test_twenty_skips_in_a_row_end_the_learner_however_large_its_scale_still_is():
    scale = LossScale(CPU, enabled=True)
    scale.scale.fill_(CEILING)
    for finite in ([BAD] * (SKIPS_TO_GIVE_UP - 1) + [FINE]) * 2:
        scale.advance(finite, torch.tensor([1.0]), LARGEST)
    assert not bool(scale.exhausted)
    scale.scale.fill_(CEILING)
    for _ in range(SKIPS_TO_GIVE_UP):
        assert not bool(scale.exhausted)
        scale.advance(BAD, torch.tensor([1.0]), LARGEST)
    assert bool(scale.exhausted)


def test_disabled_scale_stays_one_and_still_counts_skips():
    scale = LossScale(CPU, enabled=False)
    for _ in range(SKIPS_TO_GIVE_UP):
        scale.advance(BAD, torch.tensor([1.0]), LARGEST)
    assert float(scale.scale) == 1.0
    assert int(scale.skipped) == SKIPS_TO_GIVE_UP
    assert bool(scale.exhausted)
