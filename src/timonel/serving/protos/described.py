"""Messages of descriptors in text files (``.txtpb``), without generated code.

In descriptor pools of their own: other libraries may define the same names in another file, which
one pool cannot hold twice, and a model's Python code may import such a library.
"""

from __future__ import annotations

import functools
import importlib.resources
from typing import Any

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    message_factory,
    text_format,
    wrappers_pb2,
)


@functools.cache
def pool_of(name: str) -> descriptor_pool.DescriptorPool:
    """Return a descriptor pool with a file of this package, and with protobuf's wrappers."""
    text = importlib.resources.files(__package__).joinpath(f"{name}.txtpb").read_text()
    file = text_format.Parse(text, descriptor_pb2.FileDescriptorProto())
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    return pool


def class_of(pool: descriptor_pool.DescriptorPool, name: str) -> Any:
    """Return the class of a message by its full name."""
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


def config_message(name: str) -> Any:
    """Return the class of a message of TensorFlow Serving's configuration files."""
    return class_of(pool_of("config"), f"tensorflow.serving.{name}")
