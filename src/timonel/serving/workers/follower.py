"""A worker's picture of the models: follows what the leader tells, and joins what it offers."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from timonel.serving.closing import close
from timonel.serving.config import ModelSettings, ServerSettings
from timonel.serving.runtimes.base import LoadedModel
from timonel.serving.servables import Catalogue, Servable
from timonel.serving.status import StatusError
from timonel.serving.workers.channel import Channel
from timonel.serving.workers.news import News, Offer

_LOG = logging.getLogger(__name__)

Join = Callable[[int, str], LoadedModel]


class Follower:
    """Keeps a catalogue as the leader's is. Owns a thread.

    A version that is offered is joined before its state is told, and one that is offered no more
    is left when its last request has ended; only then does the leader unload it.

    Args:
        settings: The server's.
        catalogue: What is kept.
        join: Returns the model behind an offer's key, under a name for messages.
        channel: Leads to the leader.
    """

    def __init__(
        self, settings: ServerSettings, catalogue: Catalogue, join: Join, channel: Channel
    ) -> None:
        self._models = settings.models
        self._catalogue = catalogue
        self._join = join
        self._channel = channel
        self._held: dict[int, Servable] = {}
        self._known: set[str] = set()
        self._todo: queue.SimpleQueue[News | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._follow, name="follower", daemon=True)
        self.first = threading.Event()

    @property
    def models(self) -> tuple[ModelSettings, ...]:
        """The configuration in force."""
        return self._models

    def reconfigure(self, models: Sequence[ModelSettings]) -> Future[Any]:
        """Have the leader replace the configuration; done when all workers serve by it."""
        return self._channel.ask("reconfigure", [each.model_dump(mode="json") for each in models])

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def take(self, news: News) -> None:
        """Take what the leader tells; returns at once."""
        self._todo.put(news)

    def stop(self) -> None:
        """Follow no more, and close all connections to compute processes."""
        self._todo.put(None)
        self._thread.join()
        for servable in self._held.values():
            close(servable)

    def _follow(self) -> None:
        while (news := self._todo.get()) is not None:
            try:
                self._apply(news)
            except Exception:  # noqa: BLE001 - the next news may be applied
                _LOG.exception("the models cannot be followed")
            self._channel.tell("applied", news.generation)
            self.first.set()

    def _apply(self, news: News) -> None:
        self._models = news.configured
        self._catalogue.configure(news.labels)
        offered: set[int] = set()
        for name, model in news.models.items():
            servables = {
                offer.number: servable
                for offer in model.offers
                if (servable := self._servable(name, offer)) is not None
            }
            offered.update(offer.key for offer in model.offers)
            self._catalogue.publish(name, servables, model.statuses)
        for name in self._known - news.models.keys():
            self._catalogue.forget(name)
        self._known = set(news.models)
        for key in self._held.keys() - offered:
            self._leave(key, self._held.pop(key))

    def _servable(self, name: str, offer: Offer) -> Servable | None:
        held = self._held.get(offer.key)
        if held is not None:
            return held
        try:
            model = self._join(offer.key, f"{name}/{offer.number}")
        except StatusError as error:
            # It was given up meanwhile; the news of that is on its way.
            _LOG.warning("version %d of %s: %s", offer.number, name, error.message)
            return None
        servable = Servable(name, offer.number, model, offer.labels)
        self._held[offer.key] = servable
        return servable

    def _leave(self, key: int, servable: Servable) -> None:
        def leaving() -> None:
            close(servable)
            self._channel.tell("left", key)

        servable.retire(lambda: threading.Thread(target=leaving, daemon=True).start())
