"""Which runs are known to be quick, and what ends that."""

import numpy as np

from timonel.serving.runtimes.quick import InlineThreshold, OverrunCounter, is_even, size_of, spent
from timonel.serving.signature import Signature, TensorSpec


def test_what_is_no_larger_than_a_quick_run_is_quick():
    quick = InlineThreshold(limit_s=1.0)
    assert not quick.covers(0)
    quick.observe(100, 2.0)
    assert not quick.covers(100)
    quick.observe(100, 0.5)
    assert quick.covers(100)
    assert not quick.covers(101)
    quick.observe(50, 0.5)
    quick.observe(100, 2.0)
    assert quick.covers(100), "it may have met a busy machine"


def test_the_third_run_that_is_far_too_long_ends_it():
    quick = InlineThreshold(1.0, OverrunCounter(5.0))
    quick.observe(8, 0.5)
    for _ in range(2):
        quick.observe(8, 9.0, cpu_s=9.0)
        assert quick.covers(8)
    quick.observe(8, 9.0, cpu_s=1.0)
    assert quick.covers(8), "it waited for the processor"
    quick.observe(8, 9.0, cpu_s=9.0)
    quick.observe(8, 9.0, cpu_s=9.0)
    assert not quick.covers(8)
    quick.observe(8, 0.1)
    assert not quick.covers(8)


def test_what_is_far_too_long_now_and_then_is_forgiven():
    slips = OverrunCounter(5.0)
    for _ in range(10):
        assert not slips.are_too_many(6.0)
        assert not any(slips.are_too_many(1.0) for _ in range(1000))


def test_sizes_and_shapes():
    assert size_of({"a": np.zeros((2, 3), np.float32), "b": np.zeros(4, np.int64)}) == 56
    assert size_of({}) == 0

    def signature(*specs):
        return Signature("s", dict(zip("ab", specs, strict=False)), {})

    assert is_even(signature(TensorSpec("a", "DT_FLOAT", (-1, 3))))
    assert not is_even(signature(TensorSpec("a", "DT_FLOAT", (-1, -1))))
    assert not is_even(signature(TensorSpec("a", "DT_FLOAT")))
    assert not is_even(signature(TensorSpec("a", "DT_STRING", (-1,))))


def test_waiting_is_not_computing_up_to_a_point():
    assert spent(seconds=5.0, cpu_s=1.0) == 1.0
    assert spent(seconds=50.0, cpu_s=1.0) == 5.0
