"""Protos of TensorFlow, imported without TensorFlow.

``tensorflow.core`` is generated code in empty packages, but importing any of it first runs
``tensorflow/__init__.py``: five seconds and half a gigabyte that a process needs only for the
protos. So these modules are imported with an empty package in TensorFlow's place, which is removed
afterwards. A later ``import tensorflow`` loads the real package, which finds these modules loaded
and shares their classes. If TensorFlow is already loaded, nothing is replaced.

The first import is at the start of a process, before other threads could import TensorFlow at the
same time.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType

_NAME = "tensorflow"


@contextlib.contextmanager
def bare_package() -> Iterator[None]:
    """Replace TensorFlow by an empty package, unless it is loaded.

    The empty package has TensorFlow's path.
    """
    spec = None if _NAME in sys.modules else importlib.util.find_spec(_NAME)
    if spec is None:
        yield
        return
    bare = ModuleType(_NAME)
    bare.__path__ = list(spec.submodule_search_locations or ())
    sys.modules[_NAME] = bare
    try:
        yield
    finally:
        if sys.modules.get(_NAME) is bare:
            del sys.modules[_NAME]


with bare_package():
    from tensorflow.core.framework import types_pb2, variable_pb2
    from tensorflow.core.protobuf import meta_graph_pb2, saved_model_pb2

__all__ = ["bare_package", "meta_graph_pb2", "saved_model_pb2", "types_pb2", "variable_pb2"]
