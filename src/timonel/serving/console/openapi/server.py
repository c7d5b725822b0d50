"""OpenAPI paths of the server itself, and schemas of model state. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from timonel.serving.console.openapi.parts import identifier, read, record

_REASON: Final = record({"error_code": {"type": "string"}, "error_message": {"type": "string"}})
_VERSION: Final = {
    "version": {"type": "string", "pattern": "^[0-9]+$"},
    "state": {"enum": ["START", "LOADING", "AVAILABLE", "UNLOADING", "END"]},
    "status": _REASON,
}
STATUS: Final = record({"model_version_status": {"type": "array", "items": record(_VERSION)}})
_LABELS: Final = {"type": "array", "items": {"type": "string"}, "description": "Names of classes."}
MODELS: Final = record(
    {
        "models": {
            "type": "array",
            "items": record(
                {
                    "name": {"type": "string"},
                    "versions": {
                        "type": "array",
                        "items": record({**_VERSION, "labels": _LABELS}),
                    },
                }
            ),
        }
    }
)
METADATA: Final = record(
    {
        "model_spec": record(
            {
                "name": {"type": "string"},
                "signature_name": {"type": "string"},
                "version": {"type": "string"},
            }
        ),
        "metadata": {"type": "object"},
    }
)


@dataclass(frozen=True)
class Facts:
    """Server facts in a document, besides its models.

    Args:
        release: The server's version.
        is_closed: Whether credentials are required.
        lists: Whether the server lists its models and their configuration.
        metrics_path: The path of the metrics; None for no metrics.
        open_inference: Whether the server supports the Open Inference Protocol.
    """

    release: str
    is_closed: bool = False
    lists: bool = True
    metrics_path: str | None = None
    open_inference: bool = False


def server_paths(facts: Facts) -> dict[str, Any]:
    """Return the paths that are not about a single model."""
    paths: dict[str, Any] = {}
    for path, summary in {
        "/livez": "Whether the process lives",
        "/readyz": "Whether every model answers",
    }.items():
        text = {"text/plain": {"schema": {"type": "string"}}}
        paths[path] = {
            "get": {
                "operationId": identifier(path),
                "summary": summary,
                "tags": ["server"],
                "security": [],
                "responses": {
                    "200": {"description": "It does.", "content": text},
                    "503": {"description": "It does not; why.", "content": text},
                },
            }
        }
    if facts.lists:
        paths["/v1/models"] = read("/v1/models", "server", "The models and their versions", MODELS)
        config = {"type": "object", "description": "A ModelServerConfig."}
        paths["/v1/config"] = read("/v1/config", "server", "How they are configured", config)
    if facts.metrics_path is not None:
        content = {"text/plain": {"schema": {"type": "string"}}}
        paths[facts.metrics_path] = {
            "get": {
                "operationId": "metrics",
                "summary": "Metrics, in Prometheus' text format",
                "tags": ["server"],
                "responses": {"200": {"description": "OK", "content": content}},
            }
        }
    return paths
