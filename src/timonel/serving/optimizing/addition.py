"""What serving adds to a version that is exported: which runtime computes it, and its warm-up."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from timonel.models.additions import Exported, Prepare, Write
from timonel.models.schema import CheckResult
from timonel.serving.optimizing.inputs import held_out
from timonel.serving.optimizing.work import Measuring, Worth
from timonel.serving.samples import WARMUP_FILE, as_warmup_file
from timonel.storage.atomic import write_bytes

_WORTH = Worth(litert=256 << 10, frozen=4 << 20)
"""Smaller models are computed in less time than a request takes otherwise."""


@contextlib.contextmanager
def runtime_choice(exported: Exported) -> Iterator[Prepare]:
    """Measure both runtimes while the export is checked, where LiteRT can be considered at all.

    Held-out inputs become the version's warm-up requests, if the check has found that the model
    answers them.
    """
    samples = held_out(exported.export, exported.examples, exported.data_root)
    with Measuring(exported.saved_model, samples, worth=_WORTH) as measuring:

        def prepare(check: CheckResult | None) -> Write:
            measuring.wait()
            passed = check is not None and check.status == "passed"

            def write(target: Path) -> None:
                if passed and samples and not (target / WARMUP_FILE).exists():
                    write_bytes(target / WARMUP_FILE, as_warmup_file(samples))
                measuring.put_into(target)

            return write

        yield prepare
