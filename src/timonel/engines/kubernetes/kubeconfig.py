"""Address and credentials of the cluster, as kubectl finds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from timonel.errors import InputError, MissingExtraError, NotFoundError, did_you_mean

_KUBECONFIG = "~/.kube/config"
_IN_POD = "KUBERNETES_SERVICE_HOST"
_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def open_client(context: str | None, environ: Mapping[str, str]) -> tuple[Any, str]:
    """Return the official client of a cluster and the namespace; see `Api.connect`.

    Args:
        context: Context of the kubeconfig; None: the current one.
        environ: Environment variables.

    Raises:
        MissingExtraError: The official client is not installed.
        NotFoundError: No kubeconfig, or no such context in it.
        InputError: The kubeconfig cannot be used.
    """
    try:
        # Takes most of a second.
        from kubernetes import client, config  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("running on Kubernetes", "kubernetes") from error
    paths = environ.get("KUBECONFIG") or _KUBECONFIG
    configuration = client.Configuration()
    try:
        files = config.kube_config.KubeConfigMerger(paths).config_files
        if not files and context is None and environ.get(_IN_POD):
            namespace = _POD_NAMESPACE.read_text().strip()
            config.load_incluster_config(configuration)
        else:
            chosen, namespace = _context(list(files.values()), context, paths)
            config.load_kube_config(paths, chosen, configuration)
    except InputError:
        raise
    except Exception as error:  # of the client, its plugins and the YAML parser
        raise InputError(
            f"cannot use the kubeconfig {paths}: {' '.join(str(error).split())}",
            hint="check it with 'kubectl config view'",
        ) from error
    # The client would repeat requests at once, and writes too.
    configuration.retries = False
    return client.ApiClient(configuration), namespace


def _context(files: Sequence[Mapping[str, Any]], name: str | None, paths: str) -> tuple[str, str]:
    """Return the context to use and its namespace; as in kubectl, the first file wins."""
    if not files:
        raise NotFoundError(
            f"no kubeconfig at {paths}",
            hint="get one from your cluster's provider, and set KUBECONFIG to its path",
        )
    names = [file["current-context"] for file in files if file.get("current-context")]
    if name is None and not names:
        raise NotFoundError(
            f"the kubeconfig {paths} has no current context",
            hint="choose one with 'kubectl config use-context' or TIMONEL_KUBERNETES_CONTEXT",
        )
    chosen = name or names[0]
    contexts = [each for file in files for each in file.get("contexts") or ()]
    for each in contexts:
        if each["name"] == chosen:
            return chosen, each["context"].get("namespace") or "default"
    known = [each["name"] for each in contexts]
    raise NotFoundError(
        f"the kubeconfig {paths} has no context '{chosen}'",
        hint=did_you_mean(chosen, known) or f"use one of {', '.join(known)}",
    )
