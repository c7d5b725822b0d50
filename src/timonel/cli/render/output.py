"""Output streams: a console for people, JSON for programs.

Standard output carries results; progress and hints go there too, but not with ``--json``.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from timonel.logs import UNPRINTABLE, printable

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_ENDLESS = 1 << 15


def console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """Return a console, with colours and the real width on a terminal.

    Elsewhere it neither truncates nor wraps lines. Brackets and colons are no markup: texts hold
    names from elsewhere.
    """
    from rich.console import Console, ConsoleOptions
    from rich.segment import Segment

    class Escaping(Console):
        """Escapes control characters of names and texts from elsewhere."""

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterable[Segment]:
            for each in super().render(renderable, options):
                yield each if each.control else each._replace(text=printable(each.text))

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _ENDLESS
    return Escaping(
        stderr=stderr, highlight=False, markup=False, emoji=False, width=width, quiet=quiet
    )


def print_json(value: Any) -> None:
    """Print ``value`` as indented JSON; dataclasses and documents are objects of their fields."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=_encoded)
    # Without what controls a terminal.
    sys.stdout.write(UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text) + "\n")


def _encoded(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return dict(value) if isinstance(value, Mapping) else str(value)


def print_objects(objects: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    """Print objects of a Kubernetes cluster, as kubectl reads them."""
    import yaml  # type: ignore[import-untyped]

    if as_json:
        print_json({"apiVersion": "v1", "kind": "List", "items": objects})
        return

    class Dumper(yaml.SafeDumper):  # type: ignore[misc]
        """Repeats equal parts, so that each object can be read by itself."""

        def ignore_aliases(self, _data: object) -> bool:
            return True

    sys.stdout.write(
        yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, default_flow_style=None, width=100)
    )


def clock(moment: float | None) -> str:
    """Format a Unix time as local date and time."""
    if moment is None:
        return "-"
    local = dt.datetime.fromtimestamp(moment, dt.UTC).astimezone()
    return local.strftime("%Y-%m-%d %H:%M:%S")


def iso(moment: float | None) -> str | None:
    """Format a Unix time as ISO 8601 in UTC, for JSON."""
    if moment is None:
        return None
    return dt.datetime.fromtimestamp(moment, dt.UTC).isoformat(timespec="seconds")
