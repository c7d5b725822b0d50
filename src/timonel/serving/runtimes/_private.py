"""TensorFlow's private API that the server calls, in one place.

`Session.run` and `Session.make_callable` compare the shapes of fed arrays with the placeholder's
and refuse what TensorFlow Serving accepts, such as a vector for a ``[-1, 1]`` placeholder. The
callable behind `make_callable` goes straight to C++ and compares nothing. A test fails when a
release changes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def make_callable(session: Any, feed: Sequence[str], fetch: Sequence[str]) -> Callable[..., Any]:
    """Return a function from arrays, in the order of ``feed``, to the list of ``fetch``'s values.

    Args:
        session: A ``tf.compat.v1.Session``; it must outlive the function.
        feed: Names of the tensors that are fed.
        fetch: Names of the tensors that are returned.
    """
    from tensorflow.core.protobuf import config_pb2  # noqa: PLC0415 - imports TensorFlow

    options = config_pb2.CallableOptions(feed=feed, fetch=fetch)
    return session._make_callable_from_options(options)  # type: ignore[no-any-return]  # no types
