"""Check that requests are freed without garbage collection."""

from __future__ import annotations

import contextlib
import gc
import time
import weakref

WAIT_S = 5.0


@contextlib.contextmanager
def freed_by_reference_counts(array):
    """Give the inputs of a request and check that no reference cycle keeps them.

    The body must keep neither the future nor an error of the request.

    Args:
        array: The only input, ``x``; the caller keeps no reference to it.
    """
    reference = weakref.ref(array)
    inputs = {"x": array}
    del array
    gc.collect()
    gc.disable()
    try:
        yield inputs
        inputs.clear()
        deadline = time.monotonic() + WAIT_S
        # Another thread may be about to let it go.
        while reference() is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert reference() is None, gc.get_referrers(reference())
    finally:
        gc.enable()
