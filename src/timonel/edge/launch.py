"""Convert a model version for devices, in child processes. Without TensorFlow."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, Unpack

from timonel.edge.convert_options import ModelConvertOptions
from timonel.edge.demo_page import DEMO_FILE, write_demo_page
from timonel.edge.interpreter import Measured, MeasureRequest
from timonel.edge.report import (
    FORMATS,
    INTEGERS,
    LABELS_FILE,
    ConversionReport,
    ConversionRequest,
    format_id,
    labels_text,
)
from timonel.edge.report_page import write_page
from timonel.errors import AlreadyExistsError, ModelError, SpecError
from timonel.models.child import run_child
from timonel.models.versions import ModelVersion
from timonel.options import documented, with_defaults
from timonel.processes.cores import usable_cores
from timonel.storage import document, local_path, publish_dir, write_json, write_text
from timonel.storage.atomic import sweep

REPORT_FILE, PAGE_FILE = "report.json", "report.html"
_TIMEOUT_S = 3600.0

_Result = TypeVar("_Result", ConversionReport, Measured)


@dataclass(frozen=True)
class Conversion:
    """A converted model on disk.

    Attributes:
        folder: The folder with the model and its report.
        report: The report.
    """

    folder: Path
    report: ConversionReport


@documented(ModelConvertOptions)
def convert_version(version: ModelVersion, **options: Unpack[ModelConvertOptions]) -> Conversion:
    """Convert a version for phones, microcontrollers or browsers, and report how good it is.

    Args:
        version: The version.
        **options: See `ModelConvertOptions`.

    Raises:
        SpecError: An option is invalid, or does not fit the model.
        ModelError: The format cannot express the model, or the result computes something else.
        AlreadyExistsError: The output folder exists.
    """
    given = with_defaults(ModelConvertOptions, options)
    request = _request(version, given)
    name = format_id(given["format"], given["quantize"])
    target = Path(given["output"] or f"{version.name}-{version.number}-{name}")
    if target.exists() and not given["overwrite"]:
        raise AlreadyExistsError(
            f"{target} already exists",
            hint="replace it with --overwrite, or choose another folder with --output",
        )
    if target.exists() and not (target / REPORT_FILE).is_file():
        raise AlreadyExistsError(
            f"{target} exists and is no converted model", hint="choose another folder with --output"
        )
    sweep(target.parent)  # leftovers of killed conversions
    with publish_dir(target, replace=given["overwrite"]) as folder:
        request = request.model_copy(update={"output": folder.absolute()})
        report = _answer("timonel.edge.process", request, ConversionReport, folder)
        if report.target == "litert":
            report = _measured(report, folder)
        if given["page"]:
            write_demo_page(folder, report)
            report = report.model_copy(update={"files": (*report.files, DEMO_FILE)})
        if report.labels:
            write_text(folder / LABELS_FILE, labels_text(report.labels))
            report = report.model_copy(update={"files": (*report.files, LABELS_FILE)})
        write_json(
            folder / REPORT_FILE, document("conversion-report", report.model_dump(mode="json"))
        )
        write_page(folder / PAGE_FILE, report)
    return Conversion(target, report)


def _request(version: ModelVersion, given: ModelConvertOptions) -> ConversionRequest:
    if version.is_python:
        raise SpecError(f"{version} is a Python class, which devices cannot run")
    name = format_id(given["format"], given["quantize"])
    if name not in FORMATS:
        raise SpecError(f"unknown format {name}", hint=f"the formats are {', '.join(FORMATS)}")
    if given["integer_io"] and given["quantize"] not in INTEGERS:
        raise SpecError(
            f"--integer-io needs integers, but --quantize is {given['quantize']}",
            hint="add --quantize int8",
        )
    if given["c_header"] and given["format"] != "litert":
        raise SpecError("--c-header is for LiteRT", hint="remove it, or --format tfjs")
    if given["page"] and given["integer_io"] and given["quantize"] == "int16x8":
        raise SpecError("LiteRT.js has no inputs of 16 bits", hint="remove --page or --integer-io")
    if given["max_accuracy_drop"] is not None and given["quantize"] != "int8":
        raise SpecError("--max-accuracy-drop is for --quantize int8")
    export = version.document.export if version.document else None
    if given["format"] == "litert" and export is not None and export.model.precision == "float16":
        raise SpecError(
            f"{version} was trained with --precision float16, which LiteRT does not compute",
            hint="train in float32 or bfloat16; --quantize float16 halves the file",
        )
    if given["page"] and (export is None or export.preparation.input_kind != "image"):
        raise SpecError("--page needs a model of images", hint="remove --page")
    samples = None if given["samples"] is None else local_path(given["samples"]).absolute()
    return ConversionRequest(
        name=str(version),
        saved_model=version.path.absolute(),
        output=Path(),
        export=export,
        target=given["format"],
        quantization=given["quantize"],
        integer_io=given["integer_io"],
        dataset=None if samples else _dataset(version, given["data"]),
        samples=samples,
        c_header=given["c_header"],
        max_accuracy_drop=_share(given["max_accuracy_drop"]),
        allow_ops=tuple(given["allow_ops"]),
        op_libraries=tuple(given["op_libraries"]),
    )


def _dataset(version: ModelVersion, given: str | None) -> Path | None:
    if given is not None:
        return local_path(given).absolute()
    recorded: Any = version.document.provenance.get("dataset") if version.document else None
    if not recorded or "://" in recorded["uri"] or not Path(recorded["uri"]).is_dir():
        return None
    return Path(recorded["uri"])


def _share(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise SpecError(f"--max-accuracy-drop is a share such as 0.5%, got {text!r}")
    return value


def _measured(report: ConversionReport, folder: Path) -> ConversionReport:
    cores = max(1, int(usable_cores()))
    request = MeasureRequest(
        model=(folder / report.files[0]).absolute(), threads=tuple(sorted({1, cores}))
    )
    found = _answer("timonel.edge.interpreter", request, Measured, folder)
    return report.model_copy(update={"timings": found.timings, "peak_bytes": found.peak_bytes})


def _answer(
    module: str,
    request: ConversionRequest | MeasureRequest,
    result_type: type[_Result],
    output: Path,
) -> _Result:
    with tempfile.TemporaryDirectory(dir=output) as scratch:
        folder = Path(scratch)
        try:
            return run_child(
                module,
                request,
                result_type,
                task="conversion",
                folder=folder,
                log=folder / "log",
                timeout_s=_TIMEOUT_S,
            )
        except TimeoutError as error:
            raise ModelError(f"the conversion took longer than {_TIMEOUT_S:g} s") from error
