"""Operations of packages and shared libraries. TensorFlow processes only."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterable

from timonel.errors import ModelError


def allowed_operations(operations: Iterable[str], libraries: Iterable[str]) -> frozenset[str]:
    """Return trusted operations and those of op libraries, which are loaded."""
    return frozenset(operations).union(*map(load_op_library, libraries))


@functools.cache
def load_op_library(library: str) -> frozenset[str]:
    """Load a package or shared library with operations, and return what it registers."""
    import tensorflow as tf  # noqa: PLC0415 - imports TensorFlow

    known = {name for name, _ in registered_operations()}
    try:
        if library.endswith(".so"):
            tf.load_op_library(library)
        else:
            importlib.import_module(library)
    except (ImportError, tf.errors.OpError) as error:
        raise ModelError(
            f"cannot load the op library {library}: {error}",
            hint="install the package, or name the .so file by its path",
        ) from error
    return frozenset(name for name, _ in registered_operations()) - known


def registered_operations() -> list[tuple[str, bool]]:
    """Return all operations of TensorFlow, and whether each is stateful."""
    from tensorflow.core.framework import op_def_pb2  # noqa: PLC0415 - imports TensorFlow
    from tensorflow.python.client import pywrap_tf_session  # noqa: PLC0415 - imports TensorFlow

    content = pywrap_tf_session.TF_GetBuffer(pywrap_tf_session.TF_GetAllOpList())
    return [(op.name, op.is_stateful) for op in op_def_pb2.OpList.FromString(content).op]
