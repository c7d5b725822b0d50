"""Compare the formats of a version: size, accuracy and latency. Without TensorFlow."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

from timonel.edge.convert_options import BenchOptions
from timonel.edge.launch import convert_version
from timonel.edge.report import FORMATS, ConversionReport
from timonel.edge.report_page import format_name
from timonel.errors import ModelError, SpecError, did_you_mean
from timonel.models.versions import ModelVersion
from timonel.storage import write_bytes


def compare_formats(
    version: ModelVersion,
    formats: Sequence[str] = (),
    **options: Unpack[BenchOptions],
) -> Iterator[tuple[str, ConversionReport | str]]:
    """Convert a version to each format, and yield its name with the report.

    Args:
        formats: Names of `FORMATS`; all by default.
        **options: See `BenchOptions`.

    Yields:
        The format, and its report or why the version cannot be converted to it.
    """
    for name in formats:
        if name not in FORMATS:
            hint = did_you_mean(name, FORMATS) or f"use {', '.join(FORMATS)}"
            raise SpecError(f"unknown format {name!r}", hint=hint)
    for name in formats or FORMATS:
        with tempfile.TemporaryDirectory(prefix="timonel-bench-") as folder:
            target, quantization = FORMATS[name]
            try:
                made = convert_version(
                    version,
                    format=target,
                    quantize=quantization,
                    output=str(Path(folder, "model")),
                    **options,
                )
            except (ModelError, SpecError) as error:
                yield name, error.message
            else:
                yield name, made.report


def check_plot(path: Path) -> None:
    """Raise SpecError unless a plot's file is named as a PNG file."""
    if path.suffix.lower() != ".png":
        raise SpecError(f"the plot is a PNG file, got {str(path)!r}", hint="end its name with .png")


def draw_formats(path: Path, reports: Sequence[ConversionReport]) -> None:
    """Draw accuracy, or the largest difference, against size and latency."""
    check_plot(path)
    if not reports:
        raise SpecError("the version cannot be converted to any of the formats")
    # Without pyplot, which keeps figures. Importing matplotlib takes half a second.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(figsize=(12, 4.8), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(reports[0].model)
    left, right = figure.subplots(1, 2, sharey=True)
    label = "accuracy" if reports[0].comparison.accuracy is not None else "largest difference"
    left.set(xlabel="size in MB", ylabel=label)
    right.set(xlabel="latency with one thread in ms (p50)")
    original = reports[0].comparison.original_accuracy
    for number, report in enumerate(reports):
        found = report.comparison
        height = found.accuracy if found.accuracy is not None else found.max_difference
        # Formats of equal accuracy and size stay visible: later ones are smaller.
        how: dict[str, Any] = {
            "marker": "s" if report.target == "tfjs" else "o",
            "ls": "",
            "ms": 13 - number,
            "label": format_name(report),
            "color": f"C{number}",
        }
        left.plot([report.size_bytes / 1e6], [height], **how)
        right.plot([t.p50_ms for t in report.timings[:1]], [height] * bool(report.timings), **how)
    if original is not None:
        for axes in (left, right):
            axes.axhline(original, color="#9a9a9a", ls="--", lw=1, label="original")
    figure.legend(*left.get_legend_handles_labels(), loc="outside right upper", frameon=False)
    for axes in (left, right):
        axes.grid(color="#e6e6e6")
        axes.set_xlim(0, axes.get_xlim()[1] * 1.05)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=130)
    write_bytes(path, file.getvalue())
