"""Check what the settings of jobs name, before a job is created."""

from __future__ import annotations

import os
import secrets
import subprocess
from pathlib import Path

from timonel.engines.kubernetes.api import Api
from timonel.engines.kubernetes.api_errors import ClusterUnavailableError
from timonel.engines.kubernetes.pod_template import POD_USER
from timonel.engines.kubernetes.rights import ClusterRight
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.errors import EngineError, NotFoundError, SpecError
from timonel.storage.atomic import unwritable
from timonel.storage.workspace import CLAIM_VARIABLE

_TEST_S = 30.0


def check_queue(api: Api, settings: ClusterSettings) -> None:
    """Check that the queue of jobs exists, if the user may read queues."""
    queue = settings.queue
    if queue is None or not api.allows(ClusterRight("kueue.x-k8s.io", "localqueues", "get")):
        return
    try:
        api.get("LocalQueue", queue)
    except ClusterUnavailableError:
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
    """Check that the claim of jobs exists, if the user may read claims."""
    mount = settings.claim_mount()
    if mount is None or not api.allows(ClusterRight("", "persistentvolumeclaims", "get")):
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


def check_pod_user(folder: Path, settings: ClusterSettings, mode: int = 0o777) -> None:
    """Check that pods can write folders that root makes on the claim.

    Pods of other users run as these users. Checks nothing where this process may not act as the
    user of pods.

    Args:
        mode: Mode of folders that are made there.
    """
    mount = settings.claim_mount()
    if os.geteuid() or mount is None or not settings.sees(folder):
        return
    uid, gid = map(int, (settings.user or f"{POD_USER}:{POD_USER}").split(":"))
    made = folder / f"check-{secrets.token_hex(8)}"
    try:
        made.mkdir(mode)
    except OSError as error:
        raise unwritable(folder, error) from error
    try:
        # The kernel or the server decides, which know access control lists. From the mount, since
        # pods do not have the folders above it.
        name = f"./{made.relative_to(mount[1])}"
        command = ["test", "-w", name, "-a", "-x", name]
        done = subprocess.run(
            command,
            cwd=mount[1],
            user=uid,
            group=gid,
            extra_groups=[],
            timeout=_TEST_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return
    finally:
        made.rmdir()
    if done.returncode == 1:
        raise SpecError(
            f"pods run as user {uid}, which cannot write what root makes in {folder}",
            hint="submit as another user than root, one who can write there",
        )
