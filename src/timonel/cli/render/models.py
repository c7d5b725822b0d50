"""Render model versions: a list, one version, a check result, and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from timonel.cli.render.output import clock
from timonel.cli.render.tables import pairs, table
from timonel.cli.render.view import BYTES, MOMENT, STATUS, WORDS, Field, View
from timonel.errors import TimonelError
from timonel.styles import number

if TYPE_CHECKING:
    from timonel.models import ModelVersion
    from timonel.models.runtime_choice import Choice, Evidence
    from timonel.models.schema import CheckResult, HolderComparison, TensorInfo
    from timonel.storage.aliases import AliasChange

_CHECK_STYLES = {"passed": "green", "failed": "bold red", "skipped": "yellow"}


def alias_history(changes: Sequence[AliasChange]) -> Table:
    """Render the changes of aliases, the latest first."""
    rows = [
        (
            change.alias,
            "removed" if change.version is None else change.version,
            change.before,
            change.by,
            clock(change.at),
            change.reason,
        )
        for change in reversed(changes)
    ]
    return table(("ALIAS", "VERSION", "BEFORE", "BY", "AT", "REASON"), rows, wide=5)


def version_page(version: ModelVersion, uri: str | None = None) -> RenderableType:
    """Render one version: its facts, signatures and check result.

    Args:
        uri: Its location; by default its folder on this machine.
    """
    facts = VERSION.facts(version) | {"path": uri or version.uri}
    parts: list[RenderableType] = [Text(str(version), style="bold"), pairs(facts)]
    for name, signature in version.signatures.items():
        parts += [
            Text(f"\n{name}", style="bold"),
            table(
                ("", "TENSOR", "TYPE", "SHAPE"),
                [
                    *_tensors("input", signature.inputs),
                    *_tensors("output", signature.outputs),
                ],
            ),
        ]
    if version.is_python:
        parts.append(Text("\na class in Python, whose signatures are known where it is served"))
    if version.check is not None:
        parts += [Text("\nCheck", style="bold"), check_line(version.check)]
    return Group(*parts)


def check_line(check: CheckResult) -> Text:
    """Render a check result as one line."""
    return Text.assemble((check.status, _CHECK_STYLES[check.status]), f"  {check.message}")


def _runtime(version: ModelVersion) -> str | None:
    """Return a version's measured runtime choice, or None if not measured."""
    from timonel.models.runtime_choice import read_evidence

    try:
        found = read_evidence(version.path)
    except TimonelError:
        return None
    return f"{found.runtime} ({found.reason})"


def _comparison(found: HolderComparison | None) -> str | None:
    if found is None:
        return None
    verdict = f"became {found.alias}" if found.is_better else f"did not become {found.alias}"
    return f"{verdict}: {found}"


def _tensors(verb: str, tensors: Mapping[str, TensorInfo]) -> list[tuple[str, str, str, str]]:
    return [(verb, name, info.dtype, _shape(info.shape)) for name, info in sorted(tensors.items())]


def _shape(shape: tuple[int, ...] | None) -> str:
    if shape is None:
        return "any"
    return "[" + ", ".join("?" if size < 0 else str(size) for size in shape) + "]"


def _accuracy(check: CheckResult | None) -> str | None:
    if check is None:
        return None
    if check.accuracy is not None:
        return f"{check.accuracy:.1%}"
    return None if check.mae is None else f"mae {number(check.mae)}"


def evidence_page(evidence: Evidence) -> RenderableType:
    """Render the chosen runtime, the reason, and the measured times."""
    style = "bold" if evidence.runtime == "tensorflow" else "bold green"
    head = Text.assemble((evidence.runtime, style), f"  {evidence.reason}")
    if not evidence.measurements:
        return head
    compared = (
        f"milliseconds a request; largest difference {evidence.difference or 0:.1e} of "
        f"{evidence.samples} requests; {evidence.cores} cores"
    )
    ways = list(dict.fromkeys(each.runtime for each in evidence.measurements))
    columns = ("SIGNATURE", "BATCH", "AT A TIME", *(way.upper() for way in ways))
    return Group(head, table(columns, list(_rows(evidence, ways))), Text(compared, style="dim"))


def _rows(evidence: Evidence, ways: Sequence[Choice]) -> Iterator[tuple[Any, ...]]:
    times = {
        (each.signature, each.batch, each.callers, each.runtime): each.milliseconds
        for each in evidence.measurements
    }
    for signature, batch, callers in dict.fromkeys(key[:3] for key in times):
        found = (times.get((signature, batch, callers, way)) for way in ways)
        yield signature, batch, callers, *(None if t is None else f"{t:.3g}" for t in found)


def _of_export(get: Callable[[Any], Any]) -> Callable[[ModelVersion], Any]:
    """Return what reads a fact of a version's export, if there is one."""
    return lambda version: get(version.document.export) if version.document else None


def _of_document(get: Callable[[Any], Any]) -> Callable[[ModelVersion], Any]:
    return lambda version: get(version.document) if version.document else None


VERSION = View(
    Field("name", column="MODEL"),
    Field("version", get=lambda version: version.number, column="VERSION"),
    Field("path", get=lambda version: version.uri, line="path"),
    Field("aliases", WORDS, column="ALIASES", line="aliases"),
    Field(
        "created_at",
        MOMENT,
        _of_document(lambda document: document.created_at),
        column="CREATED",
        line="created",
    ),
    Field(column="ACCURACY", shown=lambda version: _accuracy(version.check)),
    Field(column="CHECK", kind=STATUS, get=lambda version: version.check and version.check.status),
    Field("run", get=lambda version: version.run_id, column="RUN", line="run"),
    Field(line="runtime", shown=_runtime),
    Field(
        line="model",
        get=_of_export(lambda made: f"{made.model.name}, {made.model.parameters:,} parameters"),
    ),
    Field("size_bytes", BYTES, _of_export(lambda made: made.size_bytes), line="size"),
    Field(line="inputs", get=_of_export(lambda made: made.preparation.input_kind)),
    Field("labels", WORDS, lambda version: version.labels or None, line="labels"),
    Field("digest", get=_of_document(lambda document: document.digest), line="digest"),
    Field(line="notes", get=_of_export(lambda made: "\n".join(made.notes) or None)),
    Field("check"),
    Field("comparison", line="comparison", shown=lambda v: _comparison(v.comparison)),
    wide="RUN",
)
