"""Convert values for MLflow: names, lengths, batches. Pure functions, without MLflow."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from timonel.tracking.artifacts import Artifact
from timonel.tracking.events import Event, decode_number

# Limits of MLflow's stores: mlflow/utils/validation.py.
METRICS_PER_BATCH = 1000
PARAMS_PER_BATCH = 100
PARAM_LENGTH = 6000
TAG_LENGTH = 8000
_KEY_LENGTH = 250
_CUT_MARK = "… [cut off by timonel: the run record has all of it]"
_NOT_IN_KEYS = re.compile(r"[^\w\-. :/]")

_T = TypeVar("_T")


class MetricValue(NamedTuple):
    """A metric value in MLflow's form."""

    key: str
    value: float
    time_ms: int
    step: int


def metric_values(event: Event) -> list[MetricValue]:
    """Return the values of a metrics event.

    The step is the training step, else the epoch.
    """
    metrics = event.get("metrics")
    if not isinstance(metrics, Mapping):
        return []
    step = next((event[name] for name in ("step", "epoch") if isinstance(event.get(name), int)), 0)
    time_ms = round(event["t"] * 1000)
    decoded = {name: decode_number(value) for name, value in metrics.items()}
    return [
        MetricValue(key(name), value, time_ms, step)
        for name, value in decoded.items()
        if value is not None
    ]


def new_params(
    params: Mapping[str, Any], known: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return parameters missing in MLflow, and those with another value there.

    MLflow's parameters never change, so changed values must be stored elsewhere.
    """
    texts = {key(name): shortened(text(value), PARAM_LENGTH) for name, value in params.items()}
    new = {name: value for name, value in texts.items() if name not in known}
    changed = {
        name: value for name, value in texts.items() if name in known and known[name] != value
    }
    return new, changed


def key(name: str) -> str:
    """Return the closest name to ``name`` that MLflow accepts."""
    cleaned = _NOT_IN_KEYS.sub("_", name).strip("/ ")[:_KEY_LENGTH].rstrip("/ ") or "_"
    is_plain = posixpath.normpath(cleaned) == cleaned and not cleaned.startswith("..")
    return cleaned if is_plain and cleaned != "." else cleaned.replace("/", "_").replace(".", "_")


def text(value: Any) -> str:
    """Return a parameter's value as text; lists and dictionaries as JSON."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else str(value)


def shortened(value: str, limit: int) -> str:
    """Truncate ``value`` to ``limit`` characters, with a mark at the end."""
    return value if len(value) <= limit else value[: limit - len(_CUT_MARK)] + _CUT_MARK


def source(artifact: Artifact) -> str:
    """Return an artifact's location as MLflow's dataset source."""
    return json.dumps({"uri": artifact.uri})


def profile(artifact: Artifact) -> str:
    """Return the dataset profile for MLflow: the full digest, and timonel's metadata."""
    return json.dumps({"digest": artifact.digest, **artifact.metadata}, default=str)


def chunks(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    """Yield ``items`` in parts of at most ``size``."""
    for start in range(0, len(items), size):
        yield items[start : start + size]
