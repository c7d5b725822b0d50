"""Address and credentials of the cluster, as kubectl finds them."""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
    """
    client, config = _library()
    configuration = client.Configuration()
    paths = _paths(environ)
    with _translated(paths):
        files = _files(config, paths)
        if _is_in_pod(files, context, environ):
            namespace = _POD_NAMESPACE.read_text().strip()
            config.load_incluster_config(configuration)
        else:
            chosen, namespace = _context(files, context, paths)
            config.load_kube_config(paths, chosen, configuration)
    # The client would repeat requests at once, and writes too.
    configuration.retries = False
    return client.ApiClient(configuration), namespace


def find_namespace(context: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the namespace that `open_client` would; None without a kubeconfig.

    It reads no credentials, so it runs no login command of the kubeconfig.

    Args:
        context: Context of the kubeconfig; None: the current one.
    """
    _, config = _library()
    paths = _paths(environ)
    with _translated(paths):
        files = _files(config, paths)
        if _is_in_pod(files, context, environ):
            return _POD_NAMESPACE.read_text().strip()
        return _context(files, context, paths)[1] if files else None


def authority_of(configuration: Any) -> str | None:
    """Return the digest of the certificates that a connection to the server is verified with.

    Clusters have authorities of their own, whose certificate every user has. None if the connection
    is not verified; empty for the authorities that this machine trusts, which verify the address.
    """
    if not configuration.host.startswith("https:") or not configuration.verify_ssl:
        return None
    path = configuration.ssl_ca_cert
    if path is None:
        return ""
    try:
        # Text around the certificates, and their order, differ between copies.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(path)
        found = sorted(context.get_ca_certs(binary_form=True))
    except OSError as error:
        raise InputError(
            f"cannot read the certificate authority of the cluster: {path}: {error}",
            hint="check it with 'kubectl config view'",
        ) from error
    return f"sha256:{hashlib.sha256(b''.join(found)).hexdigest()}"


def _library() -> tuple[Any, Any]:
    try:
        # Takes most of a second.
        from kubernetes import client, config  # noqa: PLC0415
    except ImportError as error:
        raise MissingExtraError("running on Kubernetes", "kubernetes") from error
    return client, config


def _paths(environ: Mapping[str, str]) -> str:
    return environ.get("KUBECONFIG") or _KUBECONFIG


def _files(config: Any, paths: str) -> list[Mapping[str, Any]]:
    return list(config.kube_config.KubeConfigMerger(paths).config_files.values())


def _is_in_pod(
    files: Sequence[Mapping[str, Any]], context: str | None, environ: Mapping[str, str]
) -> bool:
    return not files and context is None and bool(environ.get(_IN_POD))


@contextmanager
def _translated(paths: str) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # of the client, its plugins and the YAML parser
        raise InputError(
            f"cannot use the kubeconfig {paths}: {' '.join(str(error).split())}",
            hint="check it with 'kubectl config view'",
        ) from error


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
