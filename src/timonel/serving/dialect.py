"""Where `timonel-model-server` and `timonel serve` differ in what a client sees.

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
        pretty: Whether JSON is laid out in lines, its numbers in six, else in 9 or 17 digits, as
            TensorFlow Serving writes it; or else without blanks, in the fewest digits that give
            the same value back.
        valid_text: Whether a string output that is no UTF-8 is written as base64; TensorFlow
            Serving writes its bytes as they are, which is no JSON.
        lists_models: Whether ``GET /v1/models`` lists the models and ``GET /v1/config`` tells how
            they are configured; both are refused otherwise.
        explains_bad_versions: Whether a version beyond 64 bits is refused with a message, or
            else with an empty body.
        plain_bodies: Whether the content type of a Predict request may say that it is an image, a
            text or CSV; all are read as JSON otherwise.
    """

    name: DialectName
    pretty: bool
    valid_text: bool
    lists_models: bool
    explains_bad_versions: bool
    plain_bodies: bool


TENSORFLOW_SERVING = Dialect(
    name="tensorflow-serving",
    pretty=True,
    valid_text=False,
    lists_models=False,
    explains_bad_versions=False,
    plain_bodies=False,
)
"""What `timonel-model-server` speaks: TensorFlow Serving, to the letter."""

TIMONEL = Dialect(
    name="timonel",
    pretty=False,
    valid_text=True,
    lists_models=True,
    explains_bad_versions=True,
    plain_bodies=True,
)
"""What `timonel serve` speaks."""

DIALECTS: Mapping[DialectName, Dialect] = {
    "tensorflow-serving": TENSORFLOW_SERVING,
    "timonel": TIMONEL,
}
