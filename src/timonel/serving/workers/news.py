"""The catalogue of versions as the leader tells it to workers. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from timonel.serving.config import ModelSettings
from timonel.serving.status import Code
from timonel.serving.versions import State, VersionStatus


@dataclass(frozen=True)
class Offer:
    """A version that serves.

    Args:
        key: What the leader knows it by: two loads of one version are two offers.
        number: The version.
        labels: The class names that were exported with it.
    """

    key: int
    number: int
    labels: tuple[str, ...]


@dataclass(frozen=True)
class ModelNews:
    """What there is of one model."""

    statuses: tuple[VersionStatus, ...]
    offers: tuple[Offer, ...]


@dataclass(frozen=True)
class News:
    """Everything that workers need to know of models, at one moment.

    Args:
        generation: Rises with each change.
        configured: The configuration in force.
        labels: Names of versions, by model that is configured.
        models: What there is, by model.
    """

    generation: int
    configured: tuple[ModelSettings, ...]
    labels: Mapping[str, Mapping[str, int]]
    models: Mapping[str, ModelNews]

    def as_fields(self) -> list[Any]:
        """Return it as JSON's values."""
        return [
            self.generation,
            [each.model_dump(mode="json") for each in self.configured],
            {name: dict(labels) for name, labels in self.labels.items()},
            {name: _model_fields(model) for name, model in self.models.items()},
        ]


def read_news(fields: Sequence[Any]) -> News:
    """Return what `News.as_fields` was made of."""
    generation, configured, labels, models = fields
    return News(
        generation,
        tuple(ModelSettings.model_validate(each) for each in configured),
        labels,
        {name: _read_model(*each) for name, each in models.items()},
    )


def _model_fields(model: ModelNews) -> list[Any]:
    return [
        [[s.number, s.state.value, int(s.code), s.message] for s in model.statuses],
        [[o.key, o.number, list(o.labels)] for o in model.offers],
    ]


def _read_model(statuses: Sequence[Any], offers: Sequence[Any]) -> ModelNews:
    return ModelNews(
        tuple(VersionStatus(n, State(s), Code(c), message) for n, s, c, message in statuses),
        tuple(Offer(key, number, tuple(labels)) for key, number, labels in offers),
    )
