"""Checks of the cluster that ``--on kubernetes`` uses, of its rights, and of the bucket."""

from __future__ import annotations

import os
import secrets
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from timonel.checks import Check, Verdict
from timonel.containers.reference import Reference
from timonel.containers.registry import Registry
from timonel.engines import JobSpec, JobState, JobStatus, RoleSpec
from timonel.engines.kubernetes import KubernetesEngine, pods
from timonel.engines.kubernetes.api import Api
from timonel.engines.kubernetes.job_store import bucket_of
from timonel.engines.kubernetes.manifests import job_manifests, owned
from timonel.engines.kubernetes.names import coordinator_pods
from timonel.engines.kubernetes.prerequisites import check_claim, check_pod_user, check_queue
from timonel.engines.kubernetes.rights import user_rights
from timonel.engines.kubernetes.services.exposure import Exposure
from timonel.engines.kubernetes.settings import ClusterSettings
from timonel.engines.kubernetes.submission import remove_job
from timonel.errors import InputError, NotFoundError, TimonelError
from timonel.storage import Workspace, find_workspace, is_local
from timonel.storage.object_store import ObjectStore
from timonel.storage.uris import normalise, shared_folder, shared_uri

_POLL_S = 0.5
_CLUSTER = "cluster"
_SETTINGS = "settings"
_WORKSPACE = "workspace"
_FOLDER = "folder on this machine"
_JOB = "job"


def examine(
    workspace: str | None, environ: Mapping[str, str], *, plain_http: bool | None = None
) -> Iterator[Check]:
    """Yield checks as they finish; those that need a cluster end with the first lack of it.

    Args:
        workspace: URI of the workspace; None: there is none.
        plain_http: Whether to use the image's registry without TLS; None: only on this machine.
    """
    settings = ClusterSettings.of(environ)
    yield from _cluster(settings, workspace or "s3://bucket")
    yield _try(_SETTINGS, "image", lambda: _image(settings.image, plain_http))
    folder = None if workspace is None else _folder_of(workspace, settings)
    if folder is not None:
        yield _try(_WORKSPACE, _FOLDER, lambda: _folder(folder, settings))
    else:
        yield _try(_WORKSPACE, "bucket", lambda: _bucket(workspace))


def _folder_of(workspace: str, settings: ClusterSettings) -> Path | None:
    """Return the folder of a workspace on a claim; None: it is not on one."""
    location = normalise(workspace)
    if is_local(location) and settings.sees(location):
        return Path(location)
    return shared_folder(location)


def run_job(workspace: Workspace, timeout_s: float) -> Check:
    """Run a job that prints a version: it needs the image, DNS and the bucket from inside."""
    job_id = f"check-{secrets.token_hex(4)}"
    spec = JobSpec(
        job_id=job_id, module="timonel", args=("--version",), roles=(RoleSpec(name="worker"),)
    )

    def run() -> str | Check:
        settings = ClusterSettings.of(os.environ)
        settings.check_visible(workspace, "jobs")
        api = Api.connect(settings)
        check = _run(KubernetesEngine(workspace, api, settings), api, spec, timeout_s)
        if isinstance(check, str):
            _forget(job_id, workspace, api)
        return check

    return _try(_JOB, "run", run)


def _run(engine: KubernetesEngine, api: Api, spec: JobSpec, timeout_s: float) -> str | Check:
    started = time.monotonic()
    engine.submit(spec)
    job = f"job/{spec.job_id} -n {api.namespace}"
    while not (status := engine.status(spec.job_id)).state.is_final:
        if status.state is JobState.PENDING and _is_crash_looping(api, spec.job_id):
            # Without its pods, nothing would be left of their output.
            hint = f"after reading its output, delete the job: 'kubectl delete {job}'"
            # The status from before may not know the pod yet.
            return _not_run(engine.status(spec.job_id), hint)
        if time.monotonic() - started > timeout_s:
            engine.cancel(spec.job_id)
            break
        time.sleep(_POLL_S)
    if status.state is JobState.SUCCEEDED:
        lines = [line.text for line in engine.logs(spec.job_id)]
        return f"{spec.job_id} printed {lines[-1]!r} after {time.monotonic() - started:.0f} s"
    if api.find("Job", spec.job_id) is not None:
        return _not_run(status, f"see 'kubectl logs {job}'")
    return _not_run(status, f"see 'kubectl get events -n {api.namespace}'")


def _forget(job_id: str, workspace: Workspace, api: Api) -> None:
    """Delete all of a job that has succeeded, so that ``last`` is one of the user's own."""
    if job := api.find("Job", job_id):
        remove_job(api, job)
    store = bucket_of(workspace).store
    store.delete(store.find(f"jobs/{job_id}"))


def _is_crash_looping(api: Api, job_id: str) -> bool:
    """Decide whether a coordinator crashes at each start."""
    return any(pods.is_crash_looping(pod) for pod in api.list("Pod", coordinator_pods(job_id)))


def _not_run(status: JobStatus, hint: str) -> Check:
    found = f"{status.job_id} {status.state.phrase}: {status.message or 'without a reason'}"
    return Check(_JOB, "run", Verdict.FAIL, found, hint)


def _cluster(settings: ClusterSettings, workspace: str) -> Iterator[Check]:
    try:
        api = Api.connect(settings)
        yield Check(_CLUSTER, "kubeconfig", Verdict.OK, f"{api.server}, namespace {api.namespace}")
    except TimonelError as error:
        yield _failed(_CLUSTER, "kubeconfig", error)
        return
    yield (server := _try(_CLUSTER, "server", api.version))
    if server.verdict is not Verdict.OK:
        return
    yield _try(_CLUSTER, "rights", lambda: _rights(api, settings))
    settings = settings.model_copy(update={"namespace": api.namespace})
    yield (namespace := _try(_CLUSTER, "namespace", lambda: _namespace(api)))
    if namespace.verdict is Verdict.OK:
        yield _try(_CLUSTER, "dry run", lambda: _dry_run(api, settings, workspace))
    for kind, name in (
        ("Secret", settings.secret),
        ("Secret", settings.image_pull_secret),
        ("ServiceAccount", settings.service_account),
    ):
        if name:
            yield _existence(api, kind, name)
    if queue := settings.queue:
        yield _try(_SETTINGS, f"LocalQueue {queue}", lambda: _queue(api, settings, queue))
    if settings.domain:
        yield _try(_SETTINGS, "route", lambda: _route(api, settings))
    if mount := settings.claim_mount():
        what = f"PersistentVolumeClaim {mount[0]}"
        yield _try(_SETTINGS, what, lambda: _claim(api, settings, mount[0]))


def _rights(api: Api, settings: ClusterSettings) -> str | Check:
    rights = user_rights(has_routes=settings.domain is not None)
    lacking: dict[str, list[str]] = {}
    for right in rights:
        if not api.allows(right):
            lacking.setdefault(right.resource, []).append(right.verb)
    if not lacking:
        return f"all {len(rights)} required rights granted"
    found = ", ".join(f"{resource} ({', '.join(verbs)})" for resource, verbs in lacking.items())
    return Check(
        _CLUSTER,
        "rights",
        Verdict.FAIL,
        f"not allowed: {found}",
        "give the cluster's administrator the output of 'timonel cluster rbac --namespace "
        f"{api.namespace} --user NAME'",
    )


def _route(api: Api, settings: ClusterSettings) -> str:
    """Let the cluster check the route of an endpoint, which it does not keep."""
    Exposure(api, settings).check(f"check-{secrets.token_hex(4)}", has_tls=False)
    return f"{'Ingress' if settings.gateway is None else 'HTTPRoute'} accepted"


def _namespace(api: Api) -> str:
    # Few users may read namespaces, and a list of a missing one is empty.
    name = f"check-{secrets.token_hex(4)}"
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    api.create(config_map, dry_run=True)
    return f"{api.namespace} exists"


def _dry_run(api: Api, settings: ClusterSettings, workspace: str) -> str:
    """Let the cluster check the objects of a job, which it does not keep."""
    spec = JobSpec(
        job_id=f"check-{secrets.token_hex(4)}",
        module="timonel",
        roles=(RoleSpec(name="worker"),),
        image=settings.image or "timonel",
    )
    status = JobStatus.of(spec, time.time())
    manifests = job_manifests(spec, settings, workspace, secrets.token_hex(16), status)
    # A RoleBinding is refused unless its Role exists.
    checked = [each for each in manifests if each["kind"] != "RoleBinding"]
    for manifest in [checked[0], *owned(checked, str(uuid.uuid4()))]:
        api.create(manifest, dry_run=True)
    return f"{len(checked)} objects accepted"


def _existence(api: Api, kind: str, name: str) -> Check:
    what = f"{kind} {name}"
    try:
        api.get(kind, name)
    except NotFoundError as error:
        hint = "create it with kubectl, or change the setting"
        return Check(_SETTINGS, what, Verdict.FAIL, error.message, hint)
    except TimonelError as error:
        # Jobs do not need the right to read it.
        return Check(_SETTINGS, what, Verdict.NOTE, f"cannot be checked: {error.message}")
    return Check(_SETTINGS, what, Verdict.OK, "exists")


def _queue(api: Api, settings: ClusterSettings, name: str) -> Check:
    check_queue(api, settings)
    return _existence(api, "LocalQueue", name)


def _claim(api: Api, settings: ClusterSettings, name: str) -> Check:
    check_claim(api, settings)
    existence = _existence(api, "PersistentVolumeClaim", name)
    if existence.verdict is not Verdict.OK:
        return existence
    claim = api.get("PersistentVolumeClaim", name)
    phase = claim.get("status", {}).get("phase", "Pending")
    if phase != "Bound":
        return _unbound(api, name, phase)
    modes = claim["spec"].get("accessModes", [])
    if "ReadWriteMany" not in modes:
        found = f"pods on different nodes cannot mount it: {', '.join(modes)}"
        hint = "make a claim with the access mode ReadWriteMany"
        return Check(_SETTINGS, existence.name, Verdict.WARN, found, hint)
    return existence


def _unbound(api: Api, name: str, phase: str) -> Check:
    """Explain why a claim has no volume, by its last event."""
    what = f"PersistentVolumeClaim {name}"
    fields = {"involvedObject.kind": "PersistentVolumeClaim", "involvedObject.name": name}
    try:
        events, _ = api.list_at("Event", {}, fields)
    except TimonelError:
        events = []
    last = max(events, key=lambda each: each.get("lastTimestamp") or "", default={})
    if last.get("reason") == "WaitForFirstConsumer":
        found = "gets a volume when the first pod uses it (WaitForFirstConsumer)"
        return Check(_SETTINGS, what, Verdict.NOTE, found)
    reason = " ".join(str(last.get("message") or "").split())
    found = f"has no volume: it is {phase}" + (f": {reason}" if reason else "")
    hint = f"pods wait until it is bound; see 'kubectl describe pvc {name} -n {api.namespace}'"
    return Check(_SETTINGS, what, Verdict.FAIL, found, hint)


def _image(name: str | None, plain_http: bool | None) -> str | Check:
    if name is None:
        hint = "make one with 'timonel image build', and set TIMONEL_KUBERNETES_IMAGE"
        return Check(_SETTINGS, "image", Verdict.FAIL, "no image is set", hint)
    reference = Reference.parse(name)
    try:
        _, digest = Registry(reference, plain_http=plain_http).manifest()
    except NotFoundError:
        raise
    except InputError as error:
        tried = "--run tries it from the cluster"
        hint = f"{error.hint}; {tried}" if error.hint else tried
        return Check(_SETTINGS, "image", Verdict.WARN, error.message, hint)
    return str(reference.with_digest(digest))


def _folder(folder: Path, settings: ClusterSettings) -> str | Check:
    if (folder / "FORMAT").exists():
        settings.check_visible(find_workspace(folder, create=False, offline=True), "jobs")
    # Whoever creates the folder of a new workspace chooses its mode.
    place = next(each for each in (folder, *folder.parents) if each.exists())
    if not settings.sees(place):
        found = f"this machine has no folder for the claim {settings.claim}"
        return Check(_WORKSPACE, _FOLDER, Verdict.FAIL, found, "mount its storage there")
    written = _bucket(shared_uri(place))
    check_pod_user(place, settings, 0o777 if place == folder else 0o700)
    return written


def _bucket(uri: str | None) -> str | Check:
    if uri is None or is_local(uri):
        found = "the workspace is not in a bucket" if uri is None else f"{uri} is no bucket"
        hint = "give --workspace s3://bucket/folder, or a folder on a claim"
        return Check(_WORKSPACE, "bucket", Verdict.FAIL, found, hint)
    store = ObjectStore(uri)
    name, content = f"check-{secrets.token_hex(8)}", secrets.token_bytes(16)
    store.write(name, content)
    try:
        is_same = store.read(name) == content
    finally:
        store.delete([name])
    if not is_same:
        return Check(_WORKSPACE, "bucket", Verdict.FAIL, f"{uri} returns other bytes than written")
    return f"{uri} can be written and read"


def _try(area: str, name: str, check: Callable[[], str | Check]) -> Check:
    try:
        found = check()
    except TimonelError as error:
        return _failed(area, name, error)
    return found if isinstance(found, Check) else Check(area, name, Verdict.OK, found)


def _failed(area: str, name: str, error: TimonelError) -> Check:
    return Check(area, name, Verdict.FAIL, error.message, error.hint)
