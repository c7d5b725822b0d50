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
        failed: Why there are no figures.
    """

    what: str
    unit: str
    ours: list[float]
    against: list[float]
    rival: str
    most: float | None = None
    least: float | None = None
    failed: str | None = None

    @property
    def ratio(self) -> float | None:
        """The median of the ratios of the pairs; None where there are no figures."""
        if self.failed:
            return None
        return statistics.median(a / b for a, b in zip(self.ours, self.against, strict=True))

    @property
    def met(self) -> bool | None:
        """Whether the goal is met, which is not so without figures; None where there is none."""
        if self.most is None and self.least is None:
            return None
        if self.ratio is None:
            return False
        return self.ratio <= self.most if self.most is not None else self.ratio >= self.least

    def markdown(self) -> str:
        """Return the line as a row of a Markdown table."""
        if self.failed:
            verdict = "" if self.met is None else "**no**"
            why = " ".join(self.failed.replace("|", "/").split())
            return (
                f"| {self.what} | **failed**: {why} | {self.rival} | | {self._goal} | {verdict} |"
            )
        ours, against = statistics.median(self.ours), statistics.median(self.against)
        verdict = {None: "", True: "yes", False: "**no**"}[self.met]
        return (
            f"| {self.what} | {number(ours)} {self.unit} "
            f"| {self.rival}: {number(against)} {self.unit} "
            f"| {self.ratio:.3g} | {self._goal} | {verdict} |"
        )

    @property
    def _goal(self) -> str:
        if self.most is not None:
            return f"{self.most} or less"
        return "" if self.least is None else f"{self.least} or more"

    def document(self) -> dict[str, Any]:
        """Return the line as JSON holds it."""
        return {**asdict(self), "ratio": self.ratio, "met": self.met}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Self:
        """Return the line that a document holds."""
        known = {each.name for each in fields(cls)}
        return cls(**{name: value for name, value in document.items() if name in known})


def number(value: float) -> str:
    """Return a figure with the three digits that matter."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


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
