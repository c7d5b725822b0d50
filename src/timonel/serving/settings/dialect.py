"""Differences between the REST answers of `timonel-model-server` and `timonel serve`.

Both are the same code. Each difference is a field here, and a row of the table in
docs/design/serving.md; the skins get one of the two values as an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

DialectName = Literal["tensorflow-serving", "timonel"]


@dataclass(frozen=True)
class Dialect:
    """A way to answer.

    Args:
        name: What people call it.
        lists_models: Whether ``GET /v1/models`` lists the models and ``GET /v1/config`` tells how
            they are configured; both are refused otherwise.
        explains_bad_versions: Whether a version beyond 64 bits is refused with a message, or
            else with an empty body.
        plain_bodies: Whether the content type of a Predict request may say that it is an image or
            a text; all are read as JSON otherwise.
    """

    name: DialectName
    lists_models: bool
    explains_bad_versions: bool
    plain_bodies: bool


TENSORFLOW_SERVING = Dialect(
    name="tensorflow-serving",
    lists_models=False,
    explains_bad_versions=False,
    plain_bodies=False,
)
"""The dialect of `timonel-model-server`."""

TIMONEL = Dialect(
    name="timonel",
    lists_models=True,
    explains_bad_versions=True,
    plain_bodies=True,
)
"""The dialect of `timonel serve`."""

DIALECTS: Mapping[DialectName, Dialect] = {
    "tensorflow-serving": TENSORFLOW_SERVING,
    "timonel": TIMONEL,
}
