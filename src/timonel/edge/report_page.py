"""A conversion report as an HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path

from timonel.edge.report import ConversionReport, LayerError, TensorFacts
from timonel.storage import write_text
from timonel.styles import number
from timonel.units import format_bytes

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1f2d3d; max-width: 1000px; margin: 2em auto;
  padding: 0 1em } h1 { font-size: 1.6em } h2 { font-size: 1.15em; margin: 2em 0 .5em }
table { border-collapse: collapse } td, th { text-align: left; padding: .3em 1.2em .3em 0;
  border-bottom: 1px solid #e3e3e3; vertical-align: top } td { font-variant-numeric: tabular-nums }
.scroll { overflow-x: auto } td:first-child { overflow-wrap: anywhere; min-width: 8em }
.bar { background: #0072B2; height: .8em; min-width: 1px }
.float .bar { background: #E69F00 } .examples { display: grid; gap: 1.2em;
  grid-template-columns: repeat(auto-fill, minmax(170px, 1fr)) } figure { margin: 0 }
figure img { width: 100%; image-rendering: pixelated } figcaption { font-size: 13px }
"""
_MOST_LAYERS = 40


def write_page(path: Path, report: ConversionReport) -> None:
    """Write a report as a page that loads nothing."""
    title = escape(f"{report.model} as {format_name(report)}")
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>",
        "<meta name=viewport content='width=device-width, initial-scale=1'>",
        f"<title>{title}</title><style>{_STYLE}</style><h1>{title}</h1>",
        _table(facts_of(report)),
        "<h2>Inputs and outputs</h2>",
        _table((f"{kind} {name}", text) for kind, name, text in tensors_of(report)),
        _columns(report),
        _layers(report.layers),
        _examples(report),
    ]
    write_text(path, "\n".join(parts))


def format_name(report: ConversionReport) -> str:
    """Return the format and the numbers of its weights."""
    name = {"litert": "LiteRT", "tfjs": "TensorFlow.js"}[report.target]
    return name if report.quantization == "none" else f"{name}, {report.quantization}"


def facts_of(report: ConversionReport) -> list[tuple[str, str]]:
    """Return the main facts as names and texts."""
    share = report.size_bytes / report.original_bytes if report.original_bytes else 1
    original = format_bytes(report.original_bytes)
    facts = [
        ("size", f"{format_bytes(report.size_bytes)}, {share:.0%} of the original's {original}")
    ]
    found = report.comparison
    if found.accuracy is not None and found.original_accuracy is not None:
        facts.append(
            (
                "accuracy",
                f"{found.accuracy:.1%}, the original's is {found.original_accuracy:.1%}",
            )
        )
    if found.agreement is not None:
        facts.append(("same label", f"{found.agreement:.1%}"))
    if found.error is not None and found.original_error is not None:
        errors = f"{number(found.error)}, the original's is {number(found.original_error)}"
        facts.append(("root mean square error", errors))
    where = f"on {found.examples} examples ({found.source})"
    facts.append(("largest difference", f"{number(found.max_difference)} {where}"))
    for timing in report.timings:
        threads = "1 thread" if timing.threads == 1 else f"{timing.threads} threads"
        facts.append(
            (
                f"latency, {threads}",
                f"{number(timing.p50_ms)} ms (p50), {number(timing.p99_ms)} ms (p99)",
            )
        )
    if report.peak_bytes is not None:
        facts.append(("memory with the interpreter", format_bytes(report.peak_bytes)))
    if report.arena_bytes is not None:
        facts.append(("tensor arena", f"{report.arena_bytes:,} bytes on a microcontroller"))
    if report.layout == "image":
        height, width = report.inputs[0].shape[1:3]
        resize = report.preparation["resize"]
        passed = f"pixels from 0 to 255, resized to {width} x {height} ({resize})"
        if report.preparation.get("shrink_on_load"):
            passed += ", JPEGs first decoded at 1/2, 1/4 or 1/8 if that covers this size"
        facts.append(("app passes", passed))
    facts += [("note", note) for note in report.notes]
    return facts


def tensors_of(report: ConversionReport) -> list[tuple[str, str, str]]:
    """Return inputs and outputs: the kind, the name, and the type in one line."""
    return [
        (kind, each.name, _type(each))
        for kind, tensors in (("input", report.inputs), ("output", report.outputs))
        for each in tensors
    ]


def _type(facts: TensorFacts) -> str:
    text = f"{facts.dtype} [{', '.join(map(str, facts.shape))}]"
    if facts.scale is None:
        return text
    return f"{text}, real value = {facts.scale:.6g} * (x - {facts.zero_point})"


def _table(rows: Iterable[tuple[str, str]]) -> str:
    body = "".join(f"<tr><th>{escape(name)}<td>{escape(text)}" for name, text in rows)
    return f"<div class=scroll><table>{body}</table></div>"


def _columns(report: ConversionReport) -> str:
    """Return what a table's row holds."""
    columns = report.preparation.get("columns")
    if not columns:
        return ""
    rows = [
        (
            each["name"],
            ", ".join(f"{n} {word or 'unknown'}" for n, word in enumerate(each["vocabulary"]))
            if "vocabulary" in each
            else "number, NaN if missing",
        )
        for each in columns
    ]
    return f"<h2>Columns of the row</h2>{_table(rows)}"


def _layers(layers: Sequence[LayerError]) -> str:
    if not layers:
        return ""
    most = layers[0].error or 1.0
    rows = "".join(
        f"<tr{' class=float' if layer.in_float else ''}><td>{escape(_short(layer.layer))}"
        f"<td>{escape(layer.op)}{' (in float)' if layer.in_float else ''}"
        f"<td>{layer.error:.2f}<td style='width:12em'>"
        f"<div class=bar style='width:{layer.error / most:.0%}'></div>"
        for layer in layers[:_MOST_LAYERS]
    )
    return (
        "<h2>Errors by layer</h2><p>Root mean square difference to the float layer, in steps of "
        "its integers; rounding alone gives 0.29.</p><div class=scroll><table><tr><th>layer"
        f"<th>operation<th>error<th>{rows}</table></div>"
    )


def _examples(report: ConversionReport) -> str:
    if not report.worst:
        return ""
    heading = "<h2>Largest differences</h2>"
    if report.worst[0].image_png is None:
        rows = "".join(
            f"<tr><td>{escape(each.key)}<td>{escape(each.label or '')}"
            f"<td>{_scores(report, each.original)}<td>{_scores(report, each.converted)}"
            for each in report.worst
        )
        return (
            f"{heading}<div class=scroll><table><tr><th>example<th>true<th>original"
            f"<th>converted{rows}</table></div>"
        )
    figures = "".join(
        f'<figure><img alt="" src="data:image/png;base64,{each.image_png}"><figcaption>'
        f"{escape(each.key)}<br>{_scores(report, each.original)} &rarr; "
        f"{_scores(report, each.converted)}</figcaption></figure>"
        for each in report.worst
        if each.image_png
    )
    return (
        f"{heading}<p>The original's prediction, then the converted model's.</p>"
        f"<div class=examples>{figures}</div>"
    )


def _scores(report: ConversionReport, values: Sequence[float]) -> str:
    if report.labels and len(report.labels) == len(values):
        best = max(range(len(values)), key=values.__getitem__)
        return f"{escape(report.labels[best])} {values[best]:.3f}"
    return ", ".join(number(value) for value in values[:3])


def _short(layer: str) -> str:
    """Return the first of the operations that were fused into a layer."""
    return layer.split(";", maxsplit=1)[0]
