"""Options of commands that load one model: what safe loading allows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypedDict

from timonel.options import Option

TRUST = "Trust"


class TrustOptions(TypedDict, total=False):
    """Options that say what in a model is trusted."""

    allow_ops: Annotated[
        Sequence[str],
        Option(
            (),
            "Allow this operation, such as ReadFile, if you trust the model's author.",
            TRUST,
            flag="--allow-op",
            metavar="OPERATION",
        ),
    ]
    op_libraries: Annotated[
        Sequence[str],
        Option(
            (),
            "Load this op library, and allow its operations: a package such as tensorflow_text, "
            "or the path of a .so file.",
            TRUST,
            flag="--op-library",
            metavar="LIBRARY",
        ),
    ]
