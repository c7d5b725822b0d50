"""Differences between the REST answers of `timonel-model-server` and `timonel serve`.

Both run the same code. Each difference is a field here, and a row of the table in
docs/design/serving.md; the frontends get one of the two values as an argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

DialectName = Literal["tensorflow-serving", "timonel"]


@dataclass(frozen=True)
class Dialect:
    """A variant of the REST API.

    Args:
        name: The dialect's name in settings.
        lists_models: Whether ``GET /v1/models`` lists the models and ``GET /v1/config`` returns
            their configuration, and ``GET /monitoring/answers`` compared answers; otherwise all
            are rejected.
        explains_bad_versions: Whether a version beyond 64 bits is rejected with a message, or else
            with an empty body.
        plain_bodies: Whether a Predict request's content type may declare an image or text;
            otherwise all bodies are read as JSON.
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
"""Dialect of `timonel-model-server`."""

TIMONEL = Dialect(
    name="timonel",
    lists_models=True,
    explains_bad_versions=True,
    plain_bodies=True,
)
"""Dialect of `timonel serve`."""

DIALECTS: Mapping[DialectName, Dialect] = {
    "tensorflow-serving": TENSORFLOW_SERVING,
    "timonel": TIMONEL,
}
