"""Keep the zygote of servers running, from which replicas start without importing TensorFlow."""

from __future__ import annotations

import logging
import os

from timonel.endpoints.spec import EndpointSpec
from timonel.errors import TimonelError
from timonel.processes.zygote import ZygoteError
from timonel.processes.zygote_client import ensure_zygote
from timonel.serving.parent import PRELOAD
from timonel.serving.references import resolve
from timonel.serving.selection.choice import runtime_of
from timonel.serving.settings.models import TENSORFLOW
from timonel.serving.settings.runtime import AUTO, RuntimeSettings
from timonel.storage import Workspace, local_path

logger = logging.getLogger(__name__)

PERIOD_S = 10.0
"""Less than the time for which a zygote waits for a request after it was looked for."""


def keep_zygote() -> None:
    """Start the zygote of replicas, unless it runs; it then stays for some `PERIOD_S`."""
    try:
        ensure_zygote(PRELOAD, os.environ)
    except ZygoteError as error:
        logger.info("replicas start without a zygote: %s", error)


def uses_tensorflow(spec: EndpointSpec, workspace: Workspace) -> bool:
    """Return whether replicas of an endpoint import TensorFlow."""
    runtime = _value(spec.server_args, "--runtime")
    if runtime is not None and runtime.rpartition("=")[2] != AUTO:
        return runtime.rpartition("=")[2] == TENSORFLOW
    for version in spec.traffic.versions:
        try:
            base = local_path(resolve(spec.model, workspace, version).base_path)
        except TimonelError:
            return True  # in a bucket, say
        if runtime_of(base / str(version), RuntimeSettings()) == TENSORFLOW:
            return True
    return False


def _value(arguments: tuple[str, ...], flag: str) -> str | None:
    """Return the value of an option of ``timonel serve``."""
    for index, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if name == flag:
            return value if equals else "".join(arguments[index + 1 : index + 2])
    return None
