"""Options of `timonel.deploy` and ``timonel deploy``.

The defaults are those of a new endpoint. An existing endpoint keeps its values of options
that are not given.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, TypedDict

from timonel.options import Option

Reference = str | os.PathLike[str]

ADDRESS = "Address"
SCALING = "Replicas"
ACCESS = "TLS, keys and tokens"
LIMITS = "Limits"


class DeployOptions(TypedDict, total=False):
    """Options of an endpoint."""

    name: Annotated[
        str | None,
        Option(None, "Name of the endpoint.", ADDRESS, computed="the model's name"),
    ]
    on: Annotated[
        str | None,
        Option(None, "Where it runs: local, or kubernetes.", ADDRESS, computed="this machine"),
    ]
    host: Annotated[
        str,
        Option(
            "127.0.0.1",
            "Listen address; 0.0.0.0 for all interfaces, as always on Kubernetes.",
            ADDRESS,
        ),
    ]
    port: Annotated[
        int | None,
        Option(
            None,
            "Port of REST and gRPC.",
            ADDRESS,
            computed="the first free one from 8501",
            least=1,
        ),
    ]
    allow_host: Annotated[
        Sequence[str],
        Option(
            (),
            "Also accept this Host header, for example behind a reverse proxy. Applies to a "
            "loopback address.",
            ADDRESS,
        ),
    ]
    trust_proxy: Annotated[
        Sequence[str],
        Option(
            (),
            "Network of proxies, such as 10.0.0.0/8, whose X-Forwarded-For tells the address of a "
            "client.",
            ADDRESS,
        ),
    ]
    min_replicas: Annotated[
        int,
        Option(
            1, "Smallest number of replicas; 0 to scale to zero.", SCALING, flag="--min", least=0
        ),
    ]
    max_replicas: Annotated[
        int | None,
        Option(
            None,
            "Largest number of replicas.",
            SCALING,
            flag="--max",
            computed="number of cores",
            least=1,
        ),
    ]
    target_concurrency: Annotated[
        float | None,
        Option(
            None,
            "Target number of requests in flight per replica. Replicas are kept at 70 % of it, as "
            "by Knative.",
            SCALING,
            computed="100",
        ),
    ]
    target_rps: Annotated[
        float | None,
        Option(None, "Target requests per second per replica, instead of a concurrency.", SCALING),
    ]
    policy: Annotated[
        Reference | None,
        Option(
            None,
            "YAML file with a scaling policy: windows, panic mode, delays and other metrics.",
            SCALING,
        ),
    ]
    image: Annotated[
        str | None,
        Option(
            None,
            "Container image of replicas.",
            SCALING,
            computed="TIMONEL_KUBERNETES_IMAGE at the first deployment",
        ),
    ]
    cpus: Annotated[
        float | None,
        Option(
            None,
            "CPUs requested per replica. CPU targets are percentages of them.",
            SCALING,
            computed="1 for CPU targets",
        ),
    ]
    memory: Annotated[
        int | str | None,
        Option(
            None,
            "Memory requested per replica. Memory targets are percentages of it.",
            SCALING,
            computed="unstated",
            metavar="SIZE",
        ),
    ]
    no_server_args: Annotated[
        bool,
        Option(False, "Remove the server arguments of an existing endpoint.", SCALING),
    ]
    tls_cert: Annotated[
        Reference | None,
        Option(None, "Serve over TLS with this certificate chain, in PEM.", ACCESS),
    ]
    tls_key: Annotated[Reference | None, Option(None, "Private key of the certificate.", ACCESS)]
    no_tls: Annotated[bool, Option(False, "Remove TLS from an existing endpoint.", ACCESS)]
    api_keys: Annotated[
        Reference | None,
        Option(None, "Require API keys from this file of lines 'client=key'.", ACCESS),
    ]
    no_api_keys: Annotated[
        bool, Option(False, "Stop requiring API keys of an existing endpoint.", ACCESS)
    ]
    jwt_issuer: Annotated[str | None, Option(None, "Require tokens of this issuer.", ACCESS)]
    jwt_audience: Annotated[str | None, Option(None, "Required audience of tokens.", ACCESS)]
    jwt_claim: Annotated[
        Sequence[str],
        Option(
            (),
            "Require this claim of tokens, such as scope=predict. A list must contain the value.",
            ACCESS,
            metavar="CLAIM=VALUE",
        ),
    ]
    jwt_jwks: Annotated[
        Reference | None,
        Option(None, "File or https URL of the issuer's public keys (JWKS).", ACCESS),
    ]
    no_jwt: Annotated[bool, Option(False, "Stop requiring tokens of an existing endpoint.", ACCESS)]
    timeout_s: Annotated[
        float,
        Option(
            300.0, "Time limit of a response in seconds, including the start of a replica.", LIMITS
        ),
    ]
    max_held: Annotated[
        int,
        Option(
            1000,
            "Largest number of requests waiting for a first replica; others get 503.",
            LIMITS,
            least=1,
        ),
    ]
    rate_limit: Annotated[
        str | None,
        Option(
            None,
            "Request rate of each client, such as 100/s or 600/min:20; none for no limit. Without "
            "keys and tokens, each address is a client.",
            LIMITS,
            metavar="RATE",
        ),
    ]
    total_rate_limit: Annotated[
        str | None,
        Option(None, "Request rate of all clients together.", LIMITS, metavar="RATE"),
    ]
