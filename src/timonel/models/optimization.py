"""Measure which runtime computes a version best, and store the result.

Without TensorFlow.

The runtimes belong to the server, which this package must not import: it knows the measuring
process by its command line only.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from pydantic import Field

from timonel.errors import InputError, ModelError, SpecError, TimonelError
from timonel.models import child
from timonel.models.evidence import CONVERTED, EVIDENCE, FROZEN, Evidence, identity, made_for
from timonel.models.exports import reference_of
from timonel.models.reference import ReferenceExample
from timonel.models.schema import WARMUP_FILE, Export, Stored
from timonel.models.versions import ModelVersion
from timonel.storage import local_path, write_json
from timonel.storage.atomic import write_bytes

_MODULE = "timonel.serving.selection.benchmark.process"
_TIMEOUT_S = 900.0
_ERRORS = {each.__name__: each for each in (InputError, ModelError, SpecError)}


class Request(Stored):
    """Request to the measuring process, answered by an `Evidence` or an error."""

    saved_model: Path = Field(description="The folder of the SavedModel.")
    output: Path = Field(description="The folder for the converted models and the warm-up file.")
    samples: Path | None = Field(default=None, description="An .npz file of rows by input.")
    export: Export | None = Field(default=None, description="The export document, if known.")
    examples: tuple[ReferenceExample, ...] = Field(default=(), description="Held-out examples.")
    data_root: Path | None = Field(default=None, description="Where raw files are now.")
    required: bool = Field(
        default=False, description="Fail without requests, and measure small models too."
    )


class RuntimeChoice:
    """Running measurement, as a context manager that ends its process.

    Args:
        saved_model: The folder of the SavedModel.
        export: Its export document, if known.
        examples: Held-out examples to compare answers on.
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
        self._scratch = Path(tempfile.mkdtemp(prefix="timonel-measuring-"))
        self._answer = self._scratch / "answer.json"
        self._log = self._scratch / "measuring.log"
        try:
            request = Request(
                saved_model=saved_model.absolute(),
                output=self._scratch,
                samples=samples.absolute() if samples else None,
                export=export,
                examples=tuple(examples),
                data_root=data_root.absolute() if data_root else None,
                required=required,
            )
            path = self._scratch / "request.json"
            path.write_text(request.model_dump_json())
            self._process = child.start(_MODULE, path, self._answer, self._log)
        except BaseException:
            shutil.rmtree(self._scratch, ignore_errors=True)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        child.end(self._process)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def wait(self) -> Evidence:
        """Wait for the end of the measurement.

        Raises:
            ModelError: Required requests are missing, or the process did not end in time.
            InputError: The samples cannot be read.
            SpecError: The samples do not match the model's inputs.
        """
        if self._evidence is None:
            self._evidence = self._result()
        return self._evidence

    def store(self, version: Path, *, warm_up: bool) -> Evidence:
        """Wait for the measurement, and store its evidence in a version's folder.

        The evidence is written last and is valid only for the flatbuffer or graph beside it, so a
        concurrent reader falls back to TensorFlow.

        Args:
            version: The folder.
            warm_up: Whether to store the requests as warm-up requests if the version has none.

        Raises:
            ModelError: The process did not end in time.
            InputError: The folder cannot be written.
        """
        evidence = self.wait()
        (version / EVIDENCE).parent.mkdir(exist_ok=True)
        requests = self._scratch / WARMUP_FILE
        if warm_up and requests.exists() and not (version / WARMUP_FILE).exists():
            write_bytes(version / WARMUP_FILE, requests.read_bytes())
        if evidence.runtime != "tensorflow":
            made = made_for(evidence.runtime)
            write_bytes(version / made, (self._scratch / made).read_bytes())
        write_json(version / EVIDENCE, evidence.as_document())
        if evidence.runtime != "litert":
            (version / CONVERTED).unlink(missing_ok=True)
        if evidence.runtime != "frozen":
            shutil.rmtree(version / FROZEN, ignore_errors=True)
        return evidence

    def _result(self) -> Evidence:
        try:
            code = self._process.wait(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise ModelError(
                f"the runtimes were not measured within {_TIMEOUT_S:g} s",
                hint="look into the model, or leave the choice out",
            ) from error
        try:
            answer = json.loads(self._answer.read_text())
            if "error" in answer:
                raise _error(answer)
            return Evidence.model_validate(answer)
        except (OSError, ValueError):
            # A model that crashes the converter falls back to TensorFlow.
            reason = f"measuring it ended with code {code}: {child.last_line(self._log)[:200]}"
            return Evidence(
                runtime="tensorflow", reason=reason, saved_model=identity(self._saved_model)
            )


def optimize(version: ModelVersion, samples: str | os.PathLike[str] | None = None) -> Evidence:
    """Measure which runtime computes a version best, and store the evidence.

    Servers that load the version afterwards use LiteRT, or TensorFlow without variables, if that
    gives the same answers faster. Running servers do not change.

    Args:
        version: The version.
        samples: An ``.npz`` file with rows of its inputs by name, to compare answers on; by default
            its warm-up requests, else held-out examples of its training. They are stored as warm-up
            requests if the version has none.

    Raises:
        ModelError: There are no requests to compare answers on, or measuring takes too long.
        InputError: The folder cannot be written, or the samples cannot be read.
        SpecError: The samples do not match the model's inputs.
    """
    export = version.document.export if version.document else None
    examples = reference_of(version.path / "assets.extra", export) if export else []
    with RuntimeChoice(
        version.path,
        export=export,
        examples=examples,
        samples=None if samples is None else local_path(samples),
        required=True,
    ) as choice:
        return choice.store(version.path, warm_up=samples is not None)


def _error(answer: dict[str, Any]) -> TimonelError:
    kind = _ERRORS.get(answer.get("kind", ""), ModelError)
    return kind(str(answer["error"]), hint=answer.get("hint"))
