"""Control side of the check: run a child process, compare its answers."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from timonel.errors import ModelError
from timonel.models import child
from timonel.models.check import Request
from timonel.models.comparison import Answers, compare
from timonel.models.reference import ReferenceExample
from timonel.models.schema import CheckResult, Export
from timonel.storage.atomic import aside_dir

_TIMEOUT_S = 900.0


def check_saved_model(
    saved_model: Path,
    export: Export,
    reference: Path,
    examples: Sequence[ReferenceExample],
    *,
    log: Path | None = None,
    data_root: Path | None = None,
    dataset: Path | None = None,
) -> CheckResult:
    """Compare a SavedModel's answers to held-out raw inputs with training's predictions.

    Args:
        saved_model: The folder of the SavedModel.
        export: Its export document.
        reference: The file of the held-out examples.
        examples: The content of that file.
        log: The file for the process's output.
        data_root: The current folder of the raw files, if they were moved.
        dataset: The dataset whose records replace missing raw files.

    Returns:
        The result, of status ``skipped`` if there is nothing to compare.

    Raises:
        ModelError: The model cannot be loaded or fails on an input.
    """
    reason = _why_not(export, examples)
    if reason is not None:
        return CheckResult(status="skipped", message=f"not checked: {reason}")
    request = Request.model_validate(
        {
            "saved_model": saved_model,
            "reference": reference,
            "input_kind": export.preparation.input_kind,
            "output": "scores" if export.meaning.task == "classification" else "value",
            "data_root": data_root,
            "dataset": dataset,
        }
    )
    return compare(examples, _ask(request, log), export.labels, export.model.precision)


def _why_not(export: Export, examples: Sequence[ReferenceExample]) -> str | None:
    if export.preparation.input_kind == "tensor":
        return "the model takes tensors, so raw files cannot be fed to it"
    if export.meaning.task == "tensor":
        return "the model's outputs are neither scores of labels nor one value"
    if not examples:
        return "training left no held-out predictions to compare with"
    return None


def _ask(request: Request, log: Path | None) -> Answers:
    with _scratch(log) as scratch:
        asked, answered = scratch / "request.json", scratch / "answers.json"
        asked.write_text(request.model_dump_json())
        output = log or scratch / "check.log"
        code = _run(asked, answered, output)
        answers = _read(answered)
        if code == 0 and "error" not in answers:
            return Answers.model_validate(answers)
        message = answers.get("error") or f"the check's process ended with code {code}"
        hint = answers.get("hint") or child.last_line(output)[:300]
        raise ModelError(str(message), hint=f"see {log}" if log else str(hint))


@contextlib.contextmanager
def _scratch(log: Path | None) -> Iterator[Path]:
    """Yield a scratch folder, beside the log for later sweeps."""
    if log is not None:
        with aside_dir(log.parent) as folder:
            yield folder
    else:
        with tempfile.TemporaryDirectory() as name:
            yield Path(name)


def _run(asked: Path, answered: Path, log: Path) -> int:
    process = child.start("timonel.models.check", asked, answered, log)
    try:
        return process.wait(timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise ModelError(
            f"expected the exported model to answer within {_TIMEOUT_S:g} s, it did not",
            hint="export without the check, or look into the model",
        ) from error
    finally:
        # Also on Ctrl-C.
        child.end(process)


def _read(path: Path) -> Mapping[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        found = json.loads(path.read_text())
        return found if isinstance(found, dict) else {}
    return {}
