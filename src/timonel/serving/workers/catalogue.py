"""The leader's catalogue: what it holds is told to workers, and lent to them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping, Sequence

from timonel.serving.config import ModelSettings
from timonel.serving.servables import Catalogue, Servable
from timonel.serving.versions import VersionStatus
from timonel.serving.workers.news import ModelNews, News, Offer


class SharedCatalogue(Catalogue):
    """A catalogue that says when it changes. Written by one thread, read by any."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers = itertools.count(1)
        self._guard = threading.Lock()
        self._keys: dict[Servable, int] = {}
        self.on_change: Callable[[], object] = lambda: None

    def configure(self, labels: Mapping[str, Mapping[str, int]]) -> None:
        """Replace the models and their labels, at one stroke."""
        super().configure(labels)
        self.on_change()

    def publish(
        self,
        name: str,
        servables: Mapping[int, Servable],
        statuses: tuple[VersionStatus, ...],
    ) -> None:
        """Replace what is known of a model."""
        gone = set(self.loaded(name).values()) - set(servables.values())
        with self._guard:
            for each in gone:
                self._keys.pop(each, None)
            for each in servables.values():
                if each not in self._keys:
                    self._keys[each] = next(self._numbers)
            super().publish(name, servables, statuses)
        self.on_change()

    def forget(self, name: str) -> None:
        """Know no more of a model that is not configured."""
        with self._guard:
            for each in self.loaded(name).values():
                self._keys.pop(each, None)
            super().forget(name)
        self.on_change()

    def lent(self, key: int) -> Servable | None:
        """Return what serves under a key, with one user more; none if it serves no more."""
        with self._guard:
            found = next((each for each, mine in self._keys.items() if mine == key), None)
        return found if found is not None and found.acquire() else None

    def news(self, generation: int, configured: Sequence[ModelSettings]) -> News:
        """Return everything as it is now."""
        with self._guard:
            models = {
                name: ModelNews(
                    statuses,
                    tuple(
                        Offer(self._keys[each], number, each.labels)
                        for number, each in self.loaded(name).items()
                    ),
                )
                for name, statuses in self._statuses.items()
            }
            labels = {name: self.version_labels(name) for name in self.names}
        return News(generation, tuple(configured), labels, models)
