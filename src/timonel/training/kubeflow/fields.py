"""Read fields of a manifest so that none is dropped silently."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from timonel.errors import SpecError, did_you_mean

_T = TypeVar("_T")
_NAMES = {dict: "a mapping", list: "a list", str: "text", int: "a whole number", bool: "a boolean"}


@dataclass
class Fields:
    """Fields of an object in a manifest. Not thread-safe.

    Each field is taken, noted or refused; `close` refuses all that are left.
    """

    path: str  # for messages
    values: dict[str, Any]  # those that are left
    notes: dict[str, None]  # about the whole manifest, shared by all objects
    known: set[str] = field(default_factory=set)  # names of fields that were read
    nulls: frozenset[str] = frozenset()  # names of fields with the value null, not in `values`

    @classmethod
    def of(cls, path: str, value: object, notes: dict[str, None]) -> Fields:
        """Return the fields of a mapping; those with the value null count as absent."""
        if not isinstance(value, Mapping):
            raise SpecError(f"{path} must be a mapping, got {_shown(value)}")
        present = {str(name): found for name, found in value.items() if found is not None}
        nulls = frozenset(str(name) for name, found in value.items() if found is None)
        return cls(path, present, notes, nulls=nulls)

    def take(self, name: str, kind: type[_T]) -> _T | None:
        """Return a field and count it as read; None if it is absent."""
        self.known.add(name)
        value = self.values.pop(name, None)
        is_number = kind is int and isinstance(value, bool)
        if value is not None and (is_number or not isinstance(value, kind)):
            raise SpecError(f"{self.at(name)} must be {_NAMES[kind]}, got {_shown(value)}")
        return value

    def amount(self, name: str, least: int = 0, most: int | None = None) -> int | None:
        """Return a whole number, checked against its minimum and maximum."""
        value = self.take(name, int)
        if value is not None and value < least:
            raise SpecError(f"{self.at(name)} must be at least {least}, got {value}")
        if value is not None and most is not None and value > most:
            raise SpecError(f"{self.at(name)} must be at most {most}, got {value}")
        return value

    def choice(self, name: str, choices: tuple[str, ...]) -> str | None:
        """Return a field that has one of a few values."""
        value = self.take(name, str)
        if value is not None and value not in choices:
            allowed = ", ".join(each or '""' for each in choices)
            raise SpecError(f"{self.at(name)} must be one of {allowed}, got '{value}'")
        return value

    def child(self, name: str) -> Fields:
        """Return the fields of an object within this one; none if it is absent."""
        self.known.add(name)
        return Fields.of(self.at(name), self.values.pop(name, {}), self.notes)

    def children(self, name: str) -> list[Fields]:
        """Return the fields of each object of a list."""
        found = self.take(name, list) or []
        return [
            Fields.of(f"{self.at(name)}[{number}]", each, self.notes)
            for number, each in enumerate(found)
        ]

    def texts(self, name: str) -> list[str]:
        """Return a list of texts."""
        found = self.take(name, list) or []
        for item in found:
            if not isinstance(item, str):
                raise SpecError(
                    f"{self.at(name)} must be a list of text, got {_shown(item)}",
                    hint="put numbers and booleans in quotes",
                )
        return found

    def mapping(self, name: str) -> dict[str, str]:
        """Return a mapping from text to text."""
        inner = self.child(name)
        return {key: inner.take(key, str) or "" for key in list(inner.values)}

    def note(self, noted: Mapping[str, str]) -> None:
        """Take fields that have no effect, and note the given reasons of those present."""
        for name in [name for name in noted if name in self.values]:
            del self.values[name]
            self.notes[f"{name} has no effect: {noted[name]}"] = None

    def close(self, refused: Mapping[str, str] | None = None) -> None:
        """Check that no field is left; ``refused`` has cures by name of a known field."""
        for name in self.values:
            if refused and name in refused:
                raise SpecError(f"{self.at(name)} is not supported", hint=refused[name])
            hint = did_you_mean(name, self.known) or "remove it"
            raise SpecError(f"{self.at(name)} is unknown or not supported", hint=hint)

    def at(self, name: str) -> str:
        """Return the path of a field."""
        return f"{self.path}.{name}" if self.path else name


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
