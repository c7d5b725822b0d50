"""Options of `timonel.serve` and ``timonel serve``.

Most set one setting unchanged: its model declares default, bounds and text.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any, TypedDict, get_args

from timonel.options import Option
from timonel.serving.settings.base import SettingsModel
from timonel.serving.settings.server import ServerSettings

Reference = str | os.PathLike[str]

# Sections of the command line's help.
MODELS = "Models and versions"
ADDRESSES = "Addresses"
COMPUTE = "Compute"
TRUST = "What models may do"
ACCESS = "TLS and keys"
LIMITS = "Limits"
TELEMETRY = "Traces and logs"

OF_ENDPOINTS = (
    "--jwt-issuer", "--jwt-audience", "--jwt-jwks", "--jwt-claim", "--rate-limit",
    "--total-rate-limit",
)  # fmt: skip
"""Options that a server does not have, but an endpoint."""


def _sets(
    path: str, panel: str, *, computed: str | None = None, in_units: bool = False, **more: Any
) -> Option:
    """Return the option for the setting with a dotted name.

    Args:
        computed: The default in words, if it depends on the machine.
        in_units: Whether the default is shown as a size such as ``32MiB``.
    """
    *groups, name = path.split(".")
    model: type[SettingsModel] = ServerSettings
    for group in groups:
        kind = model.model_fields[group].annotation
        model = next(each for each in (*get_args(kind), kind) if hasattr(each, "model_fields"))
    field = model.model_fields[name]
    has_default = computed is None and not field.is_required()
    default = field.get_default(call_default_factory=True) if has_default else None
    return Option(
        _binary(default) if in_units else default,
        field.description or "",
        panel,
        computed=computed,
        setting=path,
        **more,
    )


def _binary(size: Any) -> str:
    return f"{size >> 30}GiB" if size % 2**30 == 0 else f"{size >> 20}MiB"


class ServeOptions(TypedDict, total=False):
    """Options of a server."""

    config: Annotated[
        Reference | None,
        Option(
            None,
            "ModelServerConfig text file instead of models, reloaded when it changes. The format "
            "is TensorFlow Serving's.",
            MODELS,
        ),
    ]
    resource_preserving: Annotated[Sequence[str], _sets("load.resource_preserving", MODELS)]
    version: Annotated[int | None, Option(None, "Serve this version only.", MODELS)]
    poll_s: Annotated[float, _sets("load.poll_s", MODELS)]
    load_timeout_s: Annotated[float | None, _sets("load.load_timeout_s", MODELS)]
    fail_fast: Annotated[bool, _sets("load.fail_fast", MODELS)]
    model_cache: Annotated[
        Reference | None,
        _sets("load.model_cache", MODELS, computed="timonel/models in the user's cache"),
    ]
    model_cache_size: Annotated[str | int, _sets("load.model_cache_size", MODELS, in_units=True)]
    host: Annotated[str, _sets("host", ADDRESSES)]
    rest_port: Annotated[int, _sets("rest_port", ADDRESSES)]
    grpc_port: Annotated[int | None, _sets("grpc_port", ADDRESSES)]
    allow_host: Annotated[Sequence[str], _sets("access.allowed_hosts", ADDRESSES)]
    allow_reload: Annotated[bool, _sets("access.open_reload", ADDRESSES)]
    page: Annotated[bool, _sets("rest.page", ADDRESSES)]
    detach: Annotated[
        bool,
        Option(
            False,
            "Return immediately; stop it with 'timonel servers stop'. In Python, the server "
            "outlives the process; block=False returns.",
            ADDRESSES,
        ),
    ]
    runtime: Annotated[
        str | Sequence[str],
        Option(
            (),
            "tensorflow, litert, or auto (the default); digits=litert for one model. 'auto' "
            "follows the evidence in each version. Entry points 'timonel.runtimes' add others.",
            COMPUTE,
        ),
    ]
    batching: Annotated[
        Sequence[str],
        Option(
            (),
            "Batch requests to this model without evidence that its rows are independent; * for "
            "all. Exported models with evidence are batched anyway.",
            COMPUTE,
        ),
    ]
    compute_threads: Annotated[
        int | None, _sets("compute_threads", COMPUTE, computed="one per core, at most 8")
    ]
    op_threads: Annotated[
        int | None,
        Option(
            None,
            "Threads per model operation; 0 lets TensorFlow choose. On one or two cores, each "
            "core computes its own batch.",
            COMPUTE,
            computed="1 on up to two cores, else 0",
        ),
    ]
    drain_s: Annotated[float, _sets("drain_s", COMPUTE)]
    python_timeout_s: Annotated[float | None, _sets("python.timeout_s", COMPUTE)]
    safe_loading: Annotated[bool, _sets("runtime.safe_loading", TRUST)]
    allow_ops: Annotated[
        Sequence[str],
        Option(
            (),
            "Allow this operation: ReadFile, or digits=ReadFile for one model.",
            TRUST,
            flag="--allow-op",
        ),
    ]
    op_libraries: Annotated[
        Sequence[str], _sets("runtime.op_libraries", TRUST, flag="--op-library")
    ]
    allow_python: Annotated[Sequence[str], _sets("python.allow", TRUST)]
    tls_cert: Annotated[Reference | None, _sets("access.tls.certificate", ACCESS)]
    tls_key: Annotated[Reference | None, _sets("access.tls.key", ACCESS)]
    tls_client_ca: Annotated[Reference | None, _sets("access.tls.client_ca", ACCESS)]
    api_keys: Annotated[Reference | None, _sets("access.api_keys", ACCESS)]
    max_body: Annotated[str | int, _sets("access.limits.max_body", LIMITS, in_units=True)]
    max_response: Annotated[str | int, _sets("access.limits.max_response", LIMITS, in_units=True)]
    max_receiving: Annotated[str | int, _sets("access.limits.max_receiving", LIMITS, in_units=True)]
    max_requests: Annotated[int | None, _sets("access.limits.max_requests", LIMITS)]
    max_connections: Annotated[int | None, _sets("access.limits.max_connections", LIMITS)]
    trace: Annotated[bool, _sets("monitoring.tracing", TELEMETRY)]
    request_log: Annotated[
        Reference | None,
        Option(
            None,
            "Folder for sampled requests, as PredictionLogs. The names of its TFRecord files start "
            "with the model's.",
            TELEMETRY,
        ),
    ]
    request_log_rate: Annotated[float, Option(0.01, "Fraction of requests to sample.", TELEMETRY)]
