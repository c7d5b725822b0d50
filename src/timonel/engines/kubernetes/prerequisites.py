"""Check that the cluster has what the settings of jobs name, before a job is created."""

from __future__ import annotations

from timonel.engines.kubernetes.api import Api
from timonel.engines.kubernetes.api_errors import UnavailableError
from timonel.engines.kubernetes.rights import Right
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.errors import EngineError, NotFoundError, SpecError
from timonel.storage.workspace import CLAIM_VARIABLE


def check_queue(api: Api, settings: ClusterSettings) -> None:
    """Check that the queue of jobs exists, if the user may read queues.

    Raises:
        SpecError: It does not, or Kueue is not installed.
    """
    queue = settings.queue
    if queue is None or not api.allows(Right("kueue.x-k8s.io", "localqueues", "get")):
        return
    try:
        api.get("LocalQueue", queue)
    except UnavailableError:
        raise
    except NotFoundError:
        namespace = api.namespace
        raise SpecError(
            f"no queue '{queue}' in namespace '{namespace}'",
            hint="set TIMONEL_KUBERNETES_QUEUE to one that 'kubectl get localqueues -n "
            f"{namespace}' lists, or unset it",
        ) from None
    except EngineError:  # the server has no such API
        raise SpecError(
            f"Kueue is not installed in this cluster, and the queue '{queue}' is set",
            hint="unset TIMONEL_KUBERNETES_QUEUE, or ask the cluster's administrator to install "
            "Kueue with its API v1beta2",
        ) from None


def check_claim(api: Api, settings: ClusterSettings) -> None:
    """Check that the claim of jobs exists, if the user may read claims.

    Raises:
        SpecError: It does not.
    """
    mount = settings.claim_mount()
    if mount is None or not api.allows(Right("", "persistentvolumeclaims", "get")):
        return
    try:
        api.get("PersistentVolumeClaim", mount[0])
    except NotFoundError:
        namespace = api.namespace
        raise SpecError(
            f"no PersistentVolumeClaim '{mount[0]}' in namespace '{namespace}'",
            hint=f"set {CLAIM_VARIABLE} to NAME:{mount[1]} with a NAME that 'kubectl get pvc -n "
            f"{namespace}' lists",
        ) from None
