"""The control side: has a process measure both runtimes, and puts what it found into a version.

Never imports TensorFlow.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import ValidationError

from timonel.errors import ModelError
from timonel.models import child
from timonel.serving.optimizing.decision import decide
from timonel.serving.optimizing.obstacles import obstacle
from timonel.serving.optimizing.request import Findings, Request
from timonel.serving.runtimes.evidence import (
    CONVERTED,
    EVIDENCE,
    FROZEN,
    Evidence,
    identity,
    made_for,
)
from timonel.serving.samples import WARMUP_FILE, Sample, as_warmup_file
from timonel.storage import digest_bytes, write_json
from timonel.storage.atomic import write_bytes

_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Worth:
    """The bytes of variables from which on measuring is worth its seconds.

    Args:
        litert: Where LiteRT may have what the model takes.
        frozen: Where it has not, and TensorFlow may gain without variables.
    """

    litert: int = 0
    frozen: int = 0


class Measuring:
    """A measurement that was begun; use it as a context manager, so that nothing is left of it.

    Args:
        saved_model: The folder of the SavedModel.
        samples: Requests to compare answers on.
        log: Where the process's output goes; its own scratch folder by default.
        worth: From which size of variables on it is worth a process.
    """

    def __init__(
        self,
        saved_model: Path,
        samples: Sequence[Sample],
        log: Path | None = None,
        worth: Worth | None = None,
    ) -> None:
        self._saved_model = saved_model
        self._obstacle = obstacle(saved_model)
        limits = worth or Worth()
        needed = limits.litert if self._obstacle is None else limits.frozen
        worthwhile = _variables(saved_model) >= needed
        self._reason = self._obstacle
        if self._obstacle is None and not samples:
            self._reason = "there are no requests to compare answers on"
        elif self._obstacle is None and not worthwhile:
            self._reason = "it is small; 'timonel models optimize' measures it all the same"
        self._process: subprocess.Popen[bytes] | None = None
        self._findings: Findings | None = None
        self._scratch = Path(tempfile.mkdtemp(prefix="timonel-measuring-"))
        self._log = log or self._scratch / "measuring.log"
        if samples and worthwhile:
            try:
                self._begin(samples)
            except BaseException:
                self.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def wait(self) -> None:
        """Wait for the end.

        Raises:
            ModelError: The process has not ended in time.
        """
        if self._findings is None:
            self._findings = self._found()

    def close(self) -> None:
        """End the process, and remove what it has left."""
        if self._process is not None:
            child.end(self._process)
        shutil.rmtree(self._scratch, ignore_errors=True)

    def put_into(self, version: Path) -> Evidence:
        """Wait for the end, and write what was found into a version's folder.

        The evidence comes last and counts only for the flatbuffer beside it, so that whoever reads
        meanwhile takes TensorFlow.

        Raises:
            ModelError: The process has not ended in time.
            InputError: The folder cannot be written.
        """
        self.wait()
        found = self._findings
        assert found is not None
        runtime, reason = decide(found.differences, found.impossible, found.measurements)
        converted = None
        if runtime != "tensorflow":
            content = (self._scratch / made_for(runtime)).read_bytes()
            converted = digest_bytes(content)
            write_bytes(version / made_for(runtime), content)
        evidence = Evidence(
            runtime=runtime,
            reason=reason,
            saved_model=identity(version),
            converted=converted,
            samples=found.samples,
            difference=max(
                (each for several in found.differences.values() for each in several), default=None
            ),
            measurements=found.measurements,
            versions=found.versions,
            cores=found.cores,
        )
        (version / EVIDENCE).parent.mkdir(exist_ok=True)
        write_json(version / EVIDENCE, evidence.as_document())
        if runtime != "litert":
            (version / CONVERTED).unlink(missing_ok=True)
        if runtime != "frozen":
            shutil.rmtree(version / FROZEN, ignore_errors=True)
        return evidence

    def _begin(self, samples: Sequence[Sample]) -> None:
        file = self._scratch / WARMUP_FILE
        file.parent.mkdir()
        file.write_bytes(as_warmup_file(samples))
        asked = self._scratch / "request.json"
        request = Request(
            version=self._saved_model.absolute(),
            samples=self._scratch,
            made=self._scratch,
            litert=self._obstacle is None,
        )
        asked.write_text(request.model_dump_json())
        module = "timonel.serving.optimizing.child"
        self._process = child.start(module, asked, self._answered, self._log)

    @property
    def _answered(self) -> Path:
        return self._scratch / "findings.json"

    def _found(self) -> Findings:
        if self._process is None:
            return self._nothing(self._reason or "there is nothing to measure")
        try:
            code = self._process.wait(timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise ModelError(
                f"expected both runtimes to be measured within {_TIMEOUT_S:g} s, they were not",
                hint="look into the model, or leave the choice out",
            ) from error
        with contextlib.suppress(OSError, ValueError, ValidationError):
            found = Findings.model_validate(json.loads(self._answered.read_text()))
            if self._obstacle is not None:
                impossible = {**found.impossible, "litert": self._obstacle}
                return found.model_copy(update={"impossible": impossible})
            return found
        # A model that crashes the converter is served as it always was.
        last = child.last_line(self._log)[:200]
        return self._nothing(f"measuring it ended with code {code}: {last}")

    @staticmethod
    def _nothing(reason: str) -> Findings:
        return Findings(impossible={"litert": reason, "frozen": reason})


def _variables(saved_model: Path) -> int:
    """Return the bytes of a SavedModel's variables."""
    return sum(path.stat().st_size for path in (saved_model / "variables").glob("*"))
