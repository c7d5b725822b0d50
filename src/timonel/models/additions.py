"""What other parts put into a version before it appears, such as which runtime computes it best.

They are found by entry points of the group ``timonel.additions``, since this package knows nothing
of serving. What they add lies in ``assets.extra`` and is no part of the version's digest.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from timonel.errors import ModelError
from timonel.models.reference import ReferenceExample
from timonel.models.schema import CheckResult, Export

GROUP = "timonel.additions"
_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Exported:
    """What is about to become a version.

    Args:
        saved_model: The folder of the SavedModel.
        export: What is known of it.
        examples: Held-out inputs, and what training predicted for them.
        data_root: Where raw files are now, if they were moved.
    """

    saved_model: Path
    export: Export
    examples: Sequence[ReferenceExample]
    data_root: Path | None


Write = Callable[[Path], None]
"""Puts something into the folder of the version to be."""
Prepare = Callable[[CheckResult | None], Write]
"""Waits until it is known what to put there; takes what the check found."""
Addition = Callable[[Exported], contextlib.AbstractContextManager[Prepare]]
"""What an entry point names: begins work that goes on beside the check, and ends with the block."""


@contextlib.contextmanager
def begun(exported: Exported) -> Iterator[Prepare]:
    """Begin all additions, and give what waits for them.

    One that fails is told in the log and left out: it is not worth a model.
    """
    with contextlib.ExitStack() as stack:
        prepares: list[Prepare] = []
        for entry_point in importlib.metadata.entry_points(group=GROUP):
            addition: Addition = entry_point.load()
            with _told(entry_point.name):
                prepares.append(stack.enter_context(addition(exported)))

        def prepare(check: CheckResult | None) -> Write:
            writes: list[Write] = []
            for each in prepares:
                with _told("a version's addition"):
                    writes.append(each(check))

            def write_all(target: Path) -> None:
                for write in writes:
                    write(target)

            return write_all

        yield prepare


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except ModelError as error:
        _logger.warning("%s is left out: %s", what, error)
