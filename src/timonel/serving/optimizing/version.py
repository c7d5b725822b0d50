"""Choosing the runtime of a version that exists already."""

from __future__ import annotations

import os
from pathlib import Path

from timonel.errors import ModelError
from timonel.models import ModelVersion
from timonel.models.exports import reference_of
from timonel.serving.optimizing.inputs import held_out, samples_in
from timonel.serving.optimizing.work import Measuring
from timonel.serving.runtimes.evidence import Evidence
from timonel.serving.runtimes.signatures import signatures_in
from timonel.serving.samples import WARMUP_FILE, Sample, as_warmup_file, samples_of
from timonel.storage import local_path
from timonel.storage.atomic import write_bytes

_TAGS = ("serve",)


def optimize(version: ModelVersion, samples: str | os.PathLike[str] | None = None) -> Evidence:
    """Measure which runtime computes a version best, and write the evidence into it.

    What the version answers changes by that alone: servers that load it from then on compute it
    with LiteRT if that gives the same answers faster. Running servers go on as they do.

    Args:
        version: The version.
        samples: An ``.npz`` file with rows of its inputs by name, to compare answers on; by default
            its warm-up requests, else what training has held out. They become its warm-up
            requests if it has none.

    Raises:
        ModelError: There is nothing to compare answers on, or measuring takes too long.
        InputError: The folder cannot be written, or the samples cannot be read.
        SpecError: The samples are of other inputs.
    """
    folder = version.path
    requests = _requests(version, samples)
    if not requests:
        raise ModelError(
            f"expected requests to compare both runtimes on, found none in {version}",
            hint="give --samples FILE.npz with rows of its inputs by name, or put "
            f"{WARMUP_FILE} into the version",
        )
    with Measuring(folder, requests) as measuring:
        measuring.wait()
        if samples is not None and not (folder / WARMUP_FILE).exists():
            (folder / WARMUP_FILE).parent.mkdir(exist_ok=True)
            write_bytes(folder / WARMUP_FILE, as_warmup_file(requests))
        return measuring.put_into(folder)


def _requests(version: ModelVersion, samples: str | os.PathLike[str] | None) -> list[Sample]:
    folder: Path = version.path
    if samples is not None:
        return samples_in(local_path(samples), signatures_in(folder, _TAGS))
    if found := samples_of(folder):
        return found
    if version.document is None:
        return []
    export = version.document.export
    return held_out(export, reference_of(folder / "assets.extra", export))
