"""Rows of a result: two sides measured in one run, their ratio, and the goal for it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self


@dataclass
class Row:
    """One line of a result: the same figure of two sides, pair by pair.

    Attributes:
        what: What is measured.
        unit: In which unit.
        ours: The figures of the first side.
        against: The figures of the second side, in turn with the first.
        rival: What the second side is.
        most: The ratio that is wanted is at most this,
        least: or at least this.
    """

    what: str
    unit: str
    ours: list[float]
    against: list[float]
    rival: str
    most: float | None = None
    least: float | None = None

    @property
    def ratio(self) -> float:
        """The median of the ratios of the pairs."""
        return statistics.median(a / b for a, b in zip(self.ours, self.against, strict=True))

    @property
    def met(self) -> bool | None:
        """Whether the goal is met; None where there is none."""
        if self.most is not None:
            return self.ratio <= self.most
        return None if self.least is None else self.ratio >= self.least

    def markdown(self) -> str:
        """Return the line as a row of a Markdown table."""
        ours, against = statistics.median(self.ours), statistics.median(self.against)
        goal = f"{self.most} or less" if self.most is not None else ""
        goal = f"{self.least} or more" if self.least is not None else goal
        verdict = {None: "", True: "yes", False: "**no**"}[self.met]
        return (
            f"| {self.what} | {ours:.3g} {self.unit} | {self.rival}: {against:.3g} {self.unit} "
            f"| {self.ratio:.3g} | {goal} | {verdict} |"
        )

    def document(self) -> dict[str, Any]:
        """Return the line as JSON holds it."""
        return {**asdict(self), "ratio": self.ratio, "met": self.met}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Return the line that a document holds."""
        return cls(**{each.name: document[each.name] for each in fields(cls)})


@dataclass
class Found:
    """What one part of the benchmark found.

    Attributes:
        rows: Its lines.
        remarks: What a reader must know of them.
        data: What is drawn.
    """

    rows: list[Row] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
