"""Arrays of every type of the protocol, for property tests."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from timonel.serving.protocols.v2.tensors import BYTES, NUMPY_OF
from timonel.serving.status import StatusError

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


@st.composite
def arrays(draw, datatype=None, texts=None):
    """An array of any shape, or of the given type; non-finite numbers included."""
    datatype = datatype or draw(st.sampled_from(sorted(NUMPY_OF)))
    shape = draw(SHAPES)
    if datatype == BYTES:
        count = int(np.prod(shape))
        texts = st.binary(max_size=5) if texts is None else texts
        flat = np.empty(count, object)
        flat[:] = draw(st.lists(texts, min_size=count, max_size=count))
        return flat.reshape(shape)
    if datatype == "BF16":
        return draw(hnp.arrays(np.float32, shape)).astype(NUMPY_OF["BF16"])
    return draw(hnp.arrays(NUMPY_OF[datatype], shape))


def same(one, other):
    """Whether two arrays have the same type, shape and elements, NaN included."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    if one.dtype == object:
        return one.tolist() == other.tolist()
    # Not their bytes: there is more than one NaN.
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fV"))


def outcome(function, *args):
    """What a function returns, or the code that it refuses with."""
    try:
        return function(*args)
    except StatusError as error:
        return error.code
