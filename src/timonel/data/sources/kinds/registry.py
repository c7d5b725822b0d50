"""All kinds of columns but plain numbers and words, which `sources/columns.py` parses in bulk."""

from __future__ import annotations

from collections.abc import Mapping

from timonel.data.schema import DATE_TYPES
from timonel.data.sources.kinds.base import Kind
from timonel.data.sources.kinds.dates import Date
from timonel.data.sources.kinds.lists import Boxes, NumberLists
from timonel.data.sources.kinds.pictures import Image, Mask
from timonel.data.sources.kinds.scalars import Bytes, Json, Text

KINDS: Mapping[str, Kind] = {
    **{
        kind.type: kind
        for kind in (Text(), Json(), Bytes(), NumberLists(), Image(), Mask(), Boxes())
    },
    **{order: Date(order) for order in DATE_TYPES},
}
