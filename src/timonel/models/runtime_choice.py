"""Choice of the runtime that computes a version: measure it, store it, read it.

If each replica measured for itself, replicas on different machines could choose differently, and
their answers would differ in the last digits. So the version stores one measurement, which decides
for all of them.

The runtimes belong to the server, which this package must not import. A child process measures
them; this module knows it by its command line only. Without TensorFlow.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import Field

from timonel.errors import ModelError, NotFoundError, TimonelError
from timonel.models.child import ChildProcess
from timonel.models.exports import ReferenceExample, reference_of
from timonel.models.schema import WARMUP_FILE, Export, StoredDocument
from timonel.models.versions import ModelVersion
from timonel.storage import digest_file, local_path, write_json
from timonel.storage.atomic import write_bytes
from timonel.storage.documents import document

_LOG = logging.getLogger(__name__)
_KIND = "runtime-choice"
_MODULE = "timonel.serving.selection.measuring_process"
_TIMEOUT_S = 900.0

EVIDENCE_FILE = Path("assets.extra", "timonel-runtime.json")
FLATBUFFER_FILE = Path("assets.extra", "timonel-runtime.tflite")
"""Flatbuffer converted from the version's SavedModel."""
FROZEN_DIR = Path("assets.extra", "timonel-frozen")
"""SavedModel with constants in place of the version's variables."""

Choice = Literal["tensorflow", "frozen", "litert"]
"""Runtimes for a version; ``frozen`` is TensorFlow on the SavedModel without variables."""


class Measurement(StoredDocument):
    """Time of a runtime for one batch size."""

    runtime: Choice = Field(description="The measured runtime.")
    signature: str = Field(description="The signature.")
    batch: int = Field(description="Rows per request.")
    callers: int = Field(description="Concurrent requests.")
    milliseconds: float = Field(description="Time per request: the median of several rounds.")


class Evidence(StoredDocument):
    """Content of ``assets.extra/timonel-runtime.json``."""

    max_bytes: ClassVar[int] = 2**24

    runtime: Choice = Field(description="The chosen runtime.")
    reason: str = Field(description="The reason, in one line.")
    created_at: float = Field(default_factory=time.time, description="Creation, in Unix seconds.")
    saved_model: str = Field(description="Identity of the measured SavedModel.")
    converted: str | None = Field(
        default=None, description="Digest of the flatbuffer or frozen graph, if one was chosen."
    )
    samples: int = Field(default=0, description="Number of requests compared.")
    difference: float | None = Field(
        default=None, description="Largest difference of an output, relative to TensorFlow's."
    )
    measurements: tuple[Measurement, ...] = Field(default=(), description="Measured times.")
    versions: Mapping[str, str] = Field(
        default_factory=dict, description="Versions of the measured packages."
    )
    cores: int = Field(default=0, description="Processors of the machine.")


class MeasuringRequest(StoredDocument):
    """Request to the measuring process, answered by an `Evidence` or an error."""

    saved_model: Path = Field(description="Folder of the SavedModel.")
    output: Path = Field(description="Folder for the converted models and the warm-up file.")
    samples: Path | None = Field(default=None, description="An .npz file of rows by input.")
    export: Export | None = Field(default=None, description="Export document, if known.")
    examples: tuple[ReferenceExample, ...] = Field(default=(), description="Held-out examples.")
    data_root: Path | None = Field(default=None, description="Current folder of the raw files.")
    required: bool = Field(
        default=False, description="Fail without requests, and measure small models too."
    )


class RuntimeMeasurement:
    """Running measurement, as a context manager that ends its process.

    Args:
        export: Its export document, if known.
        data_root: The current folder of the raw files, if they were moved.
        samples: An ``.npz`` file to compare answers on instead.
        required: Whether to fail without requests, and to measure small models too.
    """

    def __init__(
        self,
        saved_model: Path,
        *,
        export: Export | None = None,
        examples: Sequence[ReferenceExample] = (),
        data_root: Path | None = None,
        samples: Path | None = None,
        required: bool = False,
    ) -> None:
        self._saved_model = saved_model
        self._evidence: Evidence | None = None
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="timonel-measuring-", ignore_cleanup_errors=True)
            )
            self._scratch = Path(folder)
            request = MeasuringRequest(
                saved_model=saved_model.absolute(),
                output=self._scratch,
                samples=samples.absolute() if samples else None,
                export=export,
                examples=tuple(examples),
                data_root=data_root.absolute() if data_root else None,
                required=required,
            )
            log = self._scratch / "measuring.log"
            child = ChildProcess(_MODULE, request, self._scratch, log)
            self._child = stack.enter_context(child)
            self._resources = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def wait(self) -> Evidence:
        """Wait for the end of the measurement."""
        if self._evidence is None:
            try:
                answer = self._child.answer(_TIMEOUT_S)
            except TimeoutError as error:
                raise ModelError(
                    f"measuring the runtimes took longer than {_TIMEOUT_S:g} s",
                    hint="use smaller samples, or export with --no-optimize",
                ) from error
            # A model that crashes the converter falls back to TensorFlow.
            self._evidence = Evidence.model_validate(
                answer
                or {
                    "runtime": "tensorflow",
                    "reason": f"the measuring process ended with {self._child.end_reason()}",
                    "saved_model": identity_of(self._saved_model),
                }
            )
        return self._evidence

    def store(self, version: Path, *, warm_up: bool) -> Evidence:
        """Wait for the measurement, and store its evidence in a version's folder.

        The evidence is written last and is valid only for the flatbuffer or graph beside it, so a
        concurrent reader falls back to TensorFlow.

        Args:
            warm_up: Whether to store the requests as warm-up requests if the version has none.
        """
        evidence = self.wait()
        (version / EVIDENCE_FILE).parent.mkdir(exist_ok=True)
        requests = self._scratch / WARMUP_FILE
        if warm_up and requests.exists() and not (version / WARMUP_FILE).exists():
            write_bytes(version / WARMUP_FILE, requests.read_bytes())
        if evidence.runtime != "tensorflow":
            file = file_of(evidence.runtime)
            write_bytes(version / file, (self._scratch / file).read_bytes())
        write_json(version / EVIDENCE_FILE, document(_KIND, evidence.model_dump(mode="json")))
        if evidence.runtime != "litert":
            (version / FLATBUFFER_FILE).unlink(missing_ok=True)
        if evidence.runtime != "frozen":
            shutil.rmtree(version / FROZEN_DIR, ignore_errors=True)
        return evidence


def optimize(version: ModelVersion, samples: str | os.PathLike[str] | None = None) -> Evidence:
    """Measure which runtime computes a version best, and store the evidence.

    Servers that load the version afterwards use LiteRT, or TensorFlow without variables, if that
    gives the same answers faster. Running servers do not change.

    Args:
        samples: An ``.npz`` file with rows of its inputs by name, to compare answers on; by default
            its warm-up requests, else held-out examples of its training. Those of the default
            signature are stored as warm-up requests if the version has none.
    """
    export = version.document.export if version.document else None
    with RuntimeMeasurement(
        version.path,
        export=export,
        examples=reference_of(version.path / "assets.extra", export) if export else [],
        samples=None if samples is None else local_path(samples),
        required=True,
    ) as measurement:
        return measurement.store(version.path, warm_up=samples is not None)


def read_evidence(version: Path) -> Evidence:
    """Read the evidence in a version's folder."""
    return Evidence.read(version / EVIDENCE_FILE, _KIND)


def chosen_runtime(version: Path) -> Choice:
    """Return the runtime for a version from its evidence; TensorFlow without evidence.

    Evidence is valid only for the SavedModel, and the flatbuffer or frozen graph, it was measured
    on.
    """
    try:
        evidence = read_evidence(version)
        if evidence.runtime == "tensorflow":
            return "tensorflow"
        digest = digest_file(version / file_of(evidence.runtime))
        if identity_of(version) == evidence.saved_model and digest == evidence.converted:
            return evidence.runtime
        reason: object = "its files changed since the runtimes were measured"
    except NotFoundError:
        return "tensorflow"
    except (TimonelError, OSError) as error:
        reason = error
    _LOG.warning("using TensorFlow for %s: %s", version, reason)
    return "tensorflow"


def identity_of(version: Path) -> str:
    """Return a SavedModel's identity: its graph's digest, and its variables' sizes."""
    found = hashlib.sha256()
    for name in ("saved_model.pb", "saved_model.pbtxt"):
        if (version / name).is_file():
            found.update((version / name).read_bytes())
    for path in sorted((version / "variables").glob("*")):
        found.update(f"{path.name}\0{path.stat().st_size}\n".encode())
        if path.suffix == ".index":
            # The index holds a checksum of every variable.
            found.update(path.read_bytes())
    return f"sha256:{found.hexdigest()}"


def file_of(choice: Choice) -> Path:
    """Return the generated file for a choice other than ``tensorflow``."""
    return FLATBUFFER_FILE if choice == "litert" else FROZEN_DIR / "saved_model.pb"
