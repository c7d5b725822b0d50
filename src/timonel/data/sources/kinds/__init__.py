"""Kinds of table columns: how values are parsed, verified and described."""

from timonel.data.sources.kinds.base import Kind, ReadFile, Value
from timonel.data.sources.kinds.pictures import Image
from timonel.data.sources.kinds.registry import KINDS

__all__ = ["KINDS", "Image", "Kind", "ReadFile", "Value"]
