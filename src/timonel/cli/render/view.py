"""Views of nouns: each property is stated once, for lists, pages and JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from timonel.cli.render.output import clock, console, iso, print_json
from timonel.cli.render.tables import status, table
from timonel.errors import TimonelError
from timonel.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class ValueKind:
    """How values are shown to people, and written as JSON."""

    show: Callable[[Any], Any] = lambda value: value
    json: Callable[[Any], Any] = lambda value: value


PLAIN = ValueKind()
MOMENT = ValueKind(clock, iso)
SECONDS = ValueKind(format_seconds, lambda value: round(value, 3))
BYTES = ValueKind(format_bytes)
STATUS = ValueKind(status)
WORDS = ValueKind(lambda words: ", ".join(words) or None, list)


@dataclass(frozen=True)
class Field:
    """A property of a noun.

    Attributes:
        key: Name in JSON, and of the attribute; not in JSON if empty.
        kind: Kind of its values; None is shown as a dash, and is ``null`` in JSON.
        get: Returns its value; by default the attribute's.
        column: Heading in lists; not in lists if empty.
        line: Name on the page of one item; not there if empty, nor without a value.
        shown: Returns what people see instead of the value.
        is_detail: Is left out of the JSON of lists.
        is_optional: Is left out of lists in which no item has a value.
    """

    key: str = ""
    kind: ValueKind = PLAIN
    get: Callable[[Any], Any] | None = None
    column: str = ""
    line: str = ""
    shown: Callable[[Any], Any] | None = None
    is_detail: bool = False
    is_optional: bool = False

    def value(self, item: Any) -> Any:
        """Return the value as it is."""
        return self.get(item) if self.get else getattr(item, self.key)

    def show(self, item: Any) -> Any:
        """Return the value as people see it."""
        if self.shown:
            return self.shown(item)
        value = self.value(item)
        return None if value is None else self.kind.show(value)

    def json(self, item: Any) -> Any:
        """Return the value as JSON."""
        value = self.value(item)
        return None if value is None else self.kind.json(value)


class Once:
    """An item each property of which is read once, from its documents for example."""

    def __init__(self, item: Any) -> None:
        self._item = item

    def __getattr__(self, name: str) -> Any:
        value = self.__dict__[name] = getattr(self._item, name)
        return value


class View:
    """The properties of a noun, in order.

    Args:
        fields: The properties; the first one is the name.
        wide: Heading of the column that is cut on narrow terminals; else the first one.
        unreadable: State of an item whose documents cannot be read, where items can be so.
    """

    def __init__(self, *fields: Field, wide: str, unreadable: str = "") -> None:
        self.fields, self._wide, self._unreadable = fields, wide, unreadable

    def table(self, items: Iterable[Any], *, without: Iterable[str] = ()) -> Table:
        """Return items as a table, in the given order, without some columns."""
        columns = [each for each in self.fields if each.column and each.column not in {*without}]
        rows = [self._row(item, columns) for item in items]
        kept = [
            (place, each)
            for place, each in enumerate(columns)
            if not each.is_optional or any(row[place] is not None for row in rows)
        ]
        headings = [each.column for _, each in kept]
        wide = headings.index(self._wide) if self._wide in headings else 0
        return table(headings, [[row[place] for place, _ in kept] for row in rows], wide=wide)

    def facts(self, item: Any) -> dict[str, Any]:
        """Return the lines of an item's page."""
        once = Once(item)
        found = {each.line: each.show(once) for each in self.fields if each.line}
        return {name: value for name, value in found.items() if value is not None and value != ""}

    def json(self, item: Any, *, is_detailed: bool = False) -> dict[str, Any]:
        """Return an item as JSON."""
        found = Once(item)
        return {
            each.key: each.json(found)
            for each in self.fields
            if each.key and (is_detailed or not each.is_detail)
        }

    def print_list(self, nouns: str, items: Iterable[Any], empty: str, *, json: bool) -> None:
        """Print items as a table or JSON, or the line ``empty`` if there are none."""
        found = list(items)
        if json:
            print_json({nouns: [self.entry(item) for item in found]})
        elif found:
            console().print(self.table(found))
        else:
            print(empty)

    def _row(self, item: Any, columns: list[Field]) -> list[Any]:
        found = Once(item)
        try:
            return [each.show(found) for each in columns]
        except TimonelError as error:
            if not self._unreadable:
                raise
            known = self._broken(item, error)
            shown = {
                each.key: each.kind.show(known[each.key]) for each in columns if each.key in known
            }
            return [shown.get(each.key) for each in columns]

    def entry(self, item: Any) -> dict[str, Any]:
        """Return an item as JSON in a list, even if its documents cannot be read."""
        try:
            return self.json(item)
        except TimonelError as error:
            if not self._unreadable:
                raise
            return self._broken(item, error)

    def _broken(self, item: Any, error: TimonelError) -> dict[str, Any]:
        name = self.fields[0]
        return {name.key: name.value(item), "state": self._unreadable, "message": str(error)}
