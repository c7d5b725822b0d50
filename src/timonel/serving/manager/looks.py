"""Look at the source of a model."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from timonel.serving.manager.plan import Candidate, Rule, Tracked, of_interest
from timonel.serving.manager.sources import VersionSource
from timonel.serving.settings import Latest

Found = tuple[Collection[int], list[Candidate]]
"""All versions of a source, and the state of those of interest."""


@dataclass(eq=False)
class Look:
    """A look at a model's source.

    Args:
        source: The source; None for a model that is no longer configured.
        relist: Whether to look for new and removed versions; otherwise only known ones are checked.
        rule: The rules for choosing versions.
        tracked: The records of all versions at its start.
        began: The time of its start.
        is_obsolete: Whether the configuration has changed since.
    """

    source: VersionSource | None
    relist: bool
    rule: Rule
    tracked: Mapping[int, Tracked]
    began: float
    is_obsolete: bool = False

    def read(self) -> Found:
        """Look at the source; blocks while its file system hangs."""
        if self.source is None:
            return (), []
        numbers = self.source.versions(relist=self.relist)
        interesting = of_interest(self.rule, numbers, self.tracked)
        return numbers, self.source.look(interesting, self._enough(interesting))

    def _enough(self, interesting: Sequence[int]) -> int:
        """Return how many complete versions suffice, so that no others are checked."""
        if not isinstance(self.rule.policy, Latest):
            return len(interesting)
        records = (self.tracked.get(number) for number in interesting)
        failed = sum(record is not None and record.error is not None for record in records)
        return self.rule.policy.count + len(self.rule.keep) + failed
