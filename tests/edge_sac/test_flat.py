"""Spans, their views, and the largest magnitude."""

import pytest
import torch

from edge_sac.flat import CHUNK, Largest, Views, spans

CPU = torch.device("cpu")


@pytest.mark.parametrize("length", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK])
def test_spans_cover_everything_once(length):
    covered = torch.zeros(length)
    for span in spans(covered):
        assert 0 < span.stop - span.start <= CHUNK
        covered[span] += 1
    assert bool((covered == 1).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_largest_magnitude_whatever_its_sign_and_nan_if_there_is_one(dtype):
    largest = Largest(dtype, CPU)
    assert float(largest(torch.tensor([1.0, -3.0, 2.0], dtype=dtype))) == 3
    assert float(largest(torch.tensor([1.0, -3.0, 4.0], dtype=dtype))) == 4
    assert torch.isnan(largest(torch.tensor([1.0, float("nan")], dtype=dtype)))
    assert torch.isinf(largest(torch.tensor([1.0, float("-inf")], dtype=dtype)))


def test_views_are_of_the_buffer_and_made_once():
    buffer = torch.arange(20.0).view(2, 10)
    views = Views(buffer)
    both, first, second = views(slice(3, 6))
    assert torch.equal(both, buffer[:, 3:6])
    assert (first.tolist(), second.tolist()) == ([3, 4, 5], [13, 14, 15])
    assert views(slice(3, 6)) is views(slice(3, 6))
    first.fill_(0)
    assert float(buffer[0, 4]) == 0


def test_scratch_views_begin_at_the_start_whatever_the_span():
    buffer = torch.arange(8.0).view(2, 4)
    assert Views(buffer, scratch=True)(slice(100, 103))[1].tolist() == [0, 1, 2]
