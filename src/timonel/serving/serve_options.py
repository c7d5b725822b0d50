"""Options of `timonel.serve` and ``timonel serve``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Literal, TypedDict

from timonel.options import Option

Reference = str | os.PathLike[str]

# Sections of the command line's help.
MODELS = "Models and versions"
ADDRESSES = "Addresses"
COMPUTE = "Compute"
TRUST = "What models may do"
ACCESS = "TLS, keys and tokens"
LIMITS = "Limits"
TELEMETRY = "Traces and logs"


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
    resource_preserving: Annotated[
        Sequence[str],
        Option(
            (),
            "Model that keeps one version in memory at a time; * for all. The old version is "
            "unloaded before the new one is loaded.",
            MODELS,
        ),
    ]
    version: Annotated[int | None, Option(None, "Serve this version only.", MODELS)]
    poll_s: Annotated[float, Option(1.0, "Seconds between checks for new versions.", MODELS)]
    model_cache: Annotated[
        Reference | None,
        Option(
            None,
            "Cache folder of versions from buckets.",
            MODELS,
            computed="timonel/models in the user's cache",
        ),
    ]
    model_cache_size: Annotated[
        str | int,
        Option(
            "20GiB",
            "Maximum size of that cache, such as 50GB. Versions that no server uses are evicted, "
            "least recently used first.",
            MODELS,
        ),
    ]
    host: Annotated[
        str,
        Option("127.0.0.1", "Listen address; 0.0.0.0 for all interfaces.", ADDRESSES),
    ]
    rest_port: Annotated[int, Option(8501, "REST port; 0 picks a free one.", ADDRESSES)]
    grpc_port: Annotated[
        int | None,
        Option(
            8500,
            "gRPC port; 0 picks a free one, -1 turns gRPC off. In Python, None also turns it off.",
            ADDRESSES,
        ),
    ]
    allow_host: Annotated[
        Sequence[str],
        Option(
            (),
            "Also accept this Host header, for example behind a reverse proxy. Applies to REST "
            "requests to a loopback address.",
            ADDRESSES,
        ),
    ]
    allow_reload: Annotated[
        bool,
        Option(
            False,
            "Let clients replace the list of models over gRPC without credentials. On a server "
            "that requires credentials, clients need the permission 'admin' instead.",
            ADDRESSES,
        ),
    ]
    page: Annotated[
        bool, Option(True, "Serve a page at / with models, plots and a form.", ADDRESSES)
    ]
    detach: Annotated[
        bool,
        Option(
            False,
            "Return immediately; stop it with 'timonel servers stop'. In Python, the server "
            "outlives the process; block=False returns.",
            ADDRESSES,
        ),
    ]
    isolation: Annotated[
        Literal["process", "none"],
        Option(
            "process",
            "'process': one process per version; 'none': versions run in the server. With "
            "'process', a crash interrupts only that version for a moment.",
            COMPUTE,
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
        int | None,
        Option(
            None,
            "Threads for large and unbatched requests. They parse large requests, and compute "
            "requests without batching.",
            COMPUTE,
            computed="one per core, at most 8",
            least=1,
        ),
    ]
    op_threads: Annotated[
        int | None,
        Option(
            None,
            "Threads per model operation; 0 lets TensorFlow choose. On one or two cores, each "
            "core computes its own batch.",
            COMPUTE,
            computed="1 on up to two cores, else 0",
            least=0,
        ),
    ]
    drain_s: Annotated[
        float, Option(30.0, "Seconds to finish pending requests at shutdown.", COMPUTE)
    ]
    hang_timeout_s: Annotated[
        float | None,
        Option(
            None,
            "Restart a version's process if it has pending requests and does not respond for this "
            "long. "
            "Must be longer than any request takes.",
            COMPUTE,
            computed="off",
        ),
    ]
    safe_loading: Annotated[
        bool,
        Option(
            True,
            "Refuse models that can access files or run Python. Also refuses operations that use "
            "the network.",
            TRUST,
        ),
    ]
    allow_ops: Annotated[
        Sequence[str],
        Option(
            (),
            "Allow this operation: ReadFile, or digits=ReadFile for one model.",
            TRUST,
            flag="--allow-op",
        ),
    ]
    allow_python: Annotated[
        Sequence[str],
        Option(
            (),
            "Allow this model's versions to run Python as your user; * for all. Applies to Python "
            "models and to hooks in versions.",
            TRUST,
        ),
    ]
    hooks: Annotated[
        Sequence[Reference],
        Option(
            (),
            "Python hooks: hooks.py, or digits=hooks.py for one model. Hooks prepare requests and "
            "change responses.",
            TRUST,
        ),
    ]
    tls_cert: Annotated[
        Reference | None,
        Option(None, "Serve over TLS with this certificate chain, in PEM.", ACCESS),
    ]
    tls_key: Annotated[Reference | None, Option(None, "Private key of the certificate.", ACCESS)]
    tls_client_ca: Annotated[
        Reference | None,
        Option(None, "Require client certificates from these authorities.", ACCESS),
    ]
    tls_client_optional: Annotated[
        bool, Option(False, "Make client certificates optional for REST.", ACCESS)
    ]
    api_keys: Annotated[
        Reference | None,
        Option(None, "Require API keys from this file, made by 'timonel keys'.", ACCESS),
    ]
    jwt_issuer: Annotated[
        str | None,
        Option(None, "Accept tokens of this issuer, such as an OpenID provider's URL.", ACCESS),
    ]
    jwt_audience: Annotated[str | None, Option(None, "Required audience of tokens.", ACCESS)]
    jwt_jwks: Annotated[
        str | None,
        Option(None, "File or URL of the issuer's keys.", ACCESS, computed="from the issuer"),
    ]
    jwt_allow: Annotated[
        Sequence[str],
        Option((), "Permissions of every valid token, such as predict:digits-*.", ACCESS),
    ]
    rate_limit: Annotated[
        str | None,
        Option(
            None,
            "Request rate per client, such as 100/s or 600/min:20. Without authentication, each "
            "address is a client.",
            LIMITS,
        ),
    ]
    model_rate_limit: Annotated[
        str | None, Option(None, "Request rate per model, in the same form.", LIMITS)
    ]
    max_body: Annotated[
        str | int,
        Option("32MiB", "Maximum request size, such as 64MiB, or none.", LIMITS),
    ]
    max_requests: Annotated[
        int | None,
        Option(None, "Maximum concurrent requests; others are refused.", LIMITS, least=1),
    ]
    max_connections: Annotated[
        int | None,
        Option(None, "Maximum connections per port; others are refused.", LIMITS, least=1),
    ]
    trace: Annotated[
        bool,
        Option(
            False,
            "Send OpenTelemetry spans of requests. OTEL_EXPORTER_OTLP_ENDPOINT is the receiver; "
            "requires the extra 'otel'.",
            TELEMETRY,
        ),
    ]
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
