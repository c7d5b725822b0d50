from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from timonel.serving.isolation.shared_memory import ALIGNMENT, Allocator, aligned

SIZE = 64 * ALIGNMENT


class Machine(RuleBasedStateMachine):
    """Blocks never overlap, nothing is lost, and what is free can be had."""

    def __init__(self):
        super().__init__()
        self.blocks = Allocator(SIZE)
        self.model = {}

    @rule(length=st.integers(0, SIZE + 1))
    def take(self, length):
        offset = self.blocks.allocate(length)
        if offset is None:
            assert not self._fits(aligned(length))
            return
        assert offset % ALIGNMENT == 0
        assert 0 <= offset <= SIZE - aligned(length)
        self.model[offset] = aligned(length)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def give(self, data):
        offset = data.draw(st.sampled_from(sorted(self.model)))
        self.blocks.free(offset)
        del self.model[offset]
        with pytest.raises(KeyError):
            self.blocks.free(offset)

    @invariant()
    def nothing_overlaps(self):
        end = 0
        for offset, length in sorted(self.model.items()):
            assert offset >= end
            end = offset + length
        assert self.blocks.allocated == self.model
        assert self.blocks.is_empty == (not self.model)

    def teardown(self):
        for offset in list(self.model):
            self.blocks.free(offset)
        assert self.blocks.allocate(SIZE) == 0

    def _fits(self, length):
        end = 0
        for offset, taken in [*sorted(self.model.items()), (SIZE, 0)]:
            if offset - end >= length:
                return True
            end = offset + taken
        return False


TestBlocks = Machine.TestCase


@pytest.mark.parametrize("size", [0, -64, 65])
def test_a_size_that_is_not_aligned_is_refused(size):
    with pytest.raises(ValueError, match="expected a multiple of 64"):
        Allocator(size)
