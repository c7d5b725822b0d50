"""A cluster in this process: an API server with a Job controller, whose pods are processes.

It keeps the rules that the engine relies on: names are unique, a patch with an old resourceVersion
is refused, owned objects are deleted with their owner, Indexed Jobs replace the pods of an index
until one succeeds, suspended Jobs have no pods. It is no Kubernetes: `make test-cluster` has one.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.serving.auth.certificates import Authority

_PATH = re.compile(
    r"/(?:api/v1|apis/[^/]+/[^/]+)/namespaces/(?P<namespace>[^/]+)/(?P<plural>[a-z]+)"
    r"(?:/(?P<name>[^/]+)(?:/(?P<subresource>[a-z]+))?)?$"
)
_EVERY_S = 0.05
_MESSAGE_BYTES = 2048
_INDEX = "batch.kubernetes.io/job-completion-index"
_NUMBERS = count(os.getpid() * 1000 % 60000)

Object = dict[str, Any]


class RefusedError(Exception):
    """A request is refused with a status."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason = code, reason


@dataclass
class Process:
    """A pod's process and its folder."""

    popen: subprocess.Popen[bytes]
    folder: Path
    kill_at: float | None = None


@dataclass
class FakeCluster:
    """A cluster with one namespace.

    Attributes:
        root: Folder for the pods' files.
        env: Environment of all pods, such as addresses of servers.
        failures: Answers that requests get instead, in order: status and message.
        stuck: Status of new pods, which do not start then.
        is_full: Whether a quota allows no pods.
        port: Port of the server; 0: any.
    """

    root: Path
    env: Mapping[str, str]
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    processes: dict[str, Process] = field(default_factory=dict)
    failures: list[tuple[int, str]] = field(default_factory=list)
    stuck: Object | None = None
    is_full: bool = False
    port: int = 0
    ports: dict[str, int] = field(default_factory=dict)
    _versions: Iterator[int] = field(default_factory=lambda: count(1))
    _done: dict[str, set[int]] = field(default_factory=dict)
    _is_closed: bool = False

    def __post_init__(self) -> None:
        self._lock = threading.RLock()
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            wbufsize = -1  # one packet an answer: a second one would wait 40 ms for the first

            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else {}
                try:
                    code, answer = 200, cluster.answer(self.command, self.path, body)
                except RefusedError as error:
                    code = error.code
                    answer = {
                        "kind": "Status",
                        "status": "Failure",
                        "reason": error.reason,
                        "message": str(error),
                        "code": code,
                    }
                if isinstance(answer, Iterator):
                    self.stream(answer)
                    return
                content = json.dumps(answer).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def stream(self, chunks: Iterator[bytes]) -> None:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                try:
                    self.wfile.flush()
                    for chunk in chunks:
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
                        self.wfile.flush()
                    self.wfile.write(b"0\r\n\r\n")
                except OSError:  # the client has gone
                    self.close_connection = True

            do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - of the base class

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        self._server.socket = self._secured(self._server.socket)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        self._controller = threading.Thread(target=self._control, daemon=True)
        self._controller.start()

    def _secured(self, listener: socket.socket) -> socket.socket:
        """Return a listener with a certificate of this cluster's authority."""
        authority = Authority()
        (self.root / "ca.pem").write_bytes(authority.pem)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*authority.issue(self.root, "server"))
        # A client that sends nothing must not block others.
        return context.wrap_socket(listener, server_side=True, do_handshake_on_connect=False)

    @property
    def kubeconfig(self) -> Path:
        """File with the address of this cluster."""
        path = self.root / "kubeconfig"
        if not path.exists():
            place = {
                "server": f"https://127.0.0.1:{self.port}",
                "certificate-authority": str(self.root / "ca.pem"),
            }
            named = {"cluster": "fake", "user": "me", "namespace": "team"}
            path.write_text(
                json.dumps(
                    {
                        "apiVersion": "v1",
                        "kind": "Config",
                        "current-context": "fake",
                        "clusters": [{"name": "fake", "cluster": place}],
                        "users": [{"name": "me", "user": {}}],
                        "contexts": [{"name": "fake", "context": named}],
                    }
                )
            )
        return path

    def fail_job(self, name: str, reason: str, message: str) -> None:
        """End a Job for good, with its pods."""
        condition = {"type": "Failed", "status": "True", "reason": reason, "message": message}
        with self._lock:
            self.objects["jobs", name]["status"]["conditions"] = [condition]

    def orphan(self, name: str) -> None:
        """Delete a Job without the objects that it owns, as kubectl with ``--cascade=orphan``."""
        with self._lock:
            uid = self.objects.pop(("jobs", name))["metadata"]["uid"]
            for each in self.objects.values():
                owners = each["metadata"].get("ownerReferences")
                if owners and owners[0]["uid"] == uid:
                    del each["metadata"]["ownerReferences"]

    def age(self, plural: str, name: str, seconds: float) -> None:
        """Make an object older."""
        with self._lock:
            metadata = self.objects[plural, name]["metadata"]
            created = datetime.fromisoformat(metadata["creationTimestamp"])
            metadata["creationTimestamp"] = (created - timedelta(seconds=seconds)).isoformat()

    def close(self) -> None:
        """Kill all pods, and stop."""
        self._is_closed = True
        self._controller.join()
        for process in self.processes.values():
            process.popen.kill()
            process.popen.wait()
        self._server.shutdown()
        self._server.server_close()

    def answer(self, method: str, path: str, body: Object) -> Object | Iterator[bytes]:
        """Answer a request, with an object or with data that arrive over time."""
        url = urlsplit(path)
        query = parse_qs(url.query)
        if url.path == "/version":
            return {"gitVersion": "v1.37.0"}
        if url.path.endswith("/selfsubjectaccessreviews"):
            return {"status": {"allowed": True}}
        found = _PATH.match(url.path)
        if found is None:
            raise RefusedError(404, "NotFound", f"no such path: {url.path}")
        plural, name = found["plural"], found["name"]
        with self._lock:
            if self.failures:
                code, message = self.failures.pop(0)
                raise RefusedError(code, "Failure", message)
            if method == "POST":
                return body if "dryRun" in query else self._create(plural, body)
            if method == "GET" and name is None:
                return self._answer_list(plural, {key: each[0] for key, each in query.items()})
            if found["subresource"]:
                options = {key: each[0] for key, each in query.items()}
                return self._answer_part(method, plural, name, found["subresource"], options, body)
            return self._answer_named(method, plural, name, body)

    def _answer_list(self, plural: str, query: Mapping[str, str]) -> Object | Iterator[bytes]:
        """Answer a list with its version, which is that of no object."""
        items = self._select(plural, query.get("labelSelector", ""))
        version = {"resourceVersion": str(next(self._versions))}
        return {"kind": "List", "metadata": version, "items": items}

    def _answer_part(
        self,
        method: str,
        plural: str,
        name: str,
        subresource: str,
        query: Mapping[str, str],
        body: Object,
    ) -> Object | Iterator[bytes]:
        """Answer a request about a part of an object."""
        del query
        assert (method, plural, subresource) == ("PATCH", "pods", "status")
        return self._answer_named(method, plural, name, body)

    def _answer_named(self, method: str, plural: str, name: str, body: Object) -> Object:
        if (plural, name) not in self.objects:
            raise RefusedError(404, "NotFound", f'{plural} "{name}" not found')
        if method == "PATCH":
            return self._patch(self.objects[plural, name], body)
        if method == "DELETE":
            metadata = self.objects[plural, name]["metadata"]
            for key, value in (body.get("preconditions") or {}).items():
                if metadata[key] != value:
                    raise RefusedError(409, "Conflict", f"the {key} is another one")
            if body["propagationPolicy"] not in {"Background", "Foreground"}:
                raise RefusedError(422, "Invalid", "what it owns would be left behind")
            return self._delete(plural, name, body.get("gracePeriodSeconds"))
        return self.objects[plural, name]

    def _create(self, plural: str, body: Object) -> Object:
        name = body["metadata"]["name"]
        if (plural, name) in self.objects:
            raise RefusedError(409, "AlreadyExists", f'{plural} "{name}" already exists')
        meta = {
            **body["metadata"],
            "uid": uuid.uuid4().hex,
            "creationTimestamp": datetime.now(UTC).isoformat(),
            "resourceVersion": str(next(self._versions)),
        }
        self.objects[plural, name] = {"kind": plural, **body, "metadata": meta, "status": {}}
        return self.objects[plural, name]

    def _select(self, plural: str, selector: str) -> list[Object]:
        wanted = dict(pair.split("=", 1) for pair in selector.split(",") if pair)
        return [
            found
            for (kind, _), found in sorted(self.objects.items())
            if kind == plural and wanted.items() <= (found["metadata"].get("labels") or {}).items()
        ]

    def _patch(self, found: Object, body: Object) -> Object:
        asked = (body.get("metadata") or {}).get("resourceVersion")
        if asked not in {None, found["metadata"]["resourceVersion"]}:
            raise RefusedError(409, "Conflict", "the object has been modified")
        merge(found, body)
        found["metadata"]["resourceVersion"] = str(next(self._versions))
        return found

    def _delete(self, plural: str, name: str, grace_s: int | None) -> Object:
        found = self.objects[plural, name]
        if plural == "pods":
            self._end(name, found, grace_s)
            return found
        del self.objects[plural, name]
        uid = found["metadata"]["uid"]
        for (kind, other), each in list(self.objects.items()):
            owners = each["metadata"].get("ownerReferences") or []
            if any(owner["uid"] == uid for owner in owners):
                self._delete(kind, other, grace_s)
        return found

    def _end(self, name: str, pod: Object, grace_s: int | None) -> None:
        process = self.processes.get(name)
        if process is None or process.popen.poll() is not None:
            self.objects.pop(("pods", name), None)
            return
        if grace_s is None:
            grace_s = pod["spec"].get("terminationGracePeriodSeconds", 30)
        if process.kill_at is None or grace_s == 0:
            process.kill_at = time.monotonic() + grace_s
            pod["metadata"]["deletionTimestamp"] = "2030-01-01T00:00:00Z"
            process.popen.send_signal(signal.SIGKILL if grace_s == 0 else signal.SIGTERM)

    def _control(self) -> None:
        while not self._is_closed:
            with self._lock:
                self._collect()
                for (plural, name), each in list(self.objects.items()):
                    self._reconcile(plural, name, each)
            time.sleep(_EVERY_S)

    def _reconcile(self, plural: str, name: str, found: Object) -> None:
        """Do what a controller does about an object."""
        if plural == "jobs":
            self._reconcile_job(name, found)

    def _collect(self) -> None:
        now = time.monotonic()
        for name, process in list(self.processes.items()):
            pod = self.objects.get(("pods", name))
            code = process.popen.poll()
            if code is None:
                if process.kill_at is not None and now > process.kill_at:
                    process.popen.kill()
                continue
            if pod is None:
                continue
            if pod["status"].get("phase") == "Running":
                pod["status"]["phase"] = "Failed" if code else "Succeeded"
                ended = self._end_of(pod, code, process.folder / "output")
                pod["status"]["containerStatuses"] = [{"state": {"terminated": ended}}]
                if not code:
                    self._done.setdefault(_owner(pod), set()).add(_index(pod))
            if process.kill_at is not None:
                self.objects.pop(("pods", name), None)

    def _end_of(self, pod: Object, code: int, output: Path) -> Object:
        """Describe the end of a container."""
        ended: Object = {"exitCode": 128 - code if code < 0 else code}
        (container,) = pod["spec"]["containers"]
        if code and container.get("terminationMessagePolicy") == "FallbackToLogsOnError":
            ended["message"] = output.read_bytes()[-_MESSAGE_BYTES:].decode(errors="replace")
        return ended

    def _reconcile_job(self, name: str, job: Object) -> None:
        spec, uid = job["spec"], job["metadata"]["uid"]
        pods = [
            (pod_name, pod)
            for (plural, pod_name), pod in self.objects.items()
            if plural == "pods" and _owner(pod) == uid
        ]
        active = {_index(pod): pod_name for pod_name, pod in pods if _is_active(pod)}
        has_ended = any(each["type"] == "Failed" for each in job["status"].get("conditions", ()))
        wanted = (
            set()
            if spec.get("suspend") or has_ended or self.is_full
            else set(range(spec.get("completions", 1)))
        )
        for index in set(active) - wanted:
            self._end(active[index], self.objects["pods", active[index]], None)
        done = self._done.setdefault(uid, set())
        done &= set(range(spec.get("completions", 1)))  # others run again when the Job grows
        for index in wanted - set(active) - done:
            self._start(name, job, index)
        if wanted and wanted <= done:
            job["status"]["conditions"] = [{"type": "Complete", "status": "True"}]

    def _start(self, job_name: str, job: Object, index: int) -> None:
        name = f"{job_name}-{index}-{uuid.uuid4().hex[:5]}"
        template = json.loads(json.dumps(job["spec"]["template"]))
        owner = {"kind": "Job", "name": job_name, "uid": job["metadata"]["uid"]}
        meta = {"name": name, "annotations": {_INDEX: str(index)}, "ownerReferences": [owner]}
        pod = {"metadata": {**template["metadata"], **meta}, "spec": template["spec"]}
        self._create("pods", pod)
        if self.stuck is not None:
            self.objects["pods", name]["status"] = self.stuck
            return
        folder = self.root / "pods" / name
        folder.mkdir(parents=True)
        (container,) = pod["spec"]["containers"]
        python, *rest = container["command"]
        assert python == "python3"
        with (folder / "output").open("wb") as output:
            popen = subprocess.Popen(
                [sys.executable, *rest],
                env=self._environment(pod, folder),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.processes[name] = Process(popen, folder)
        self.objects["pods", name]["status"]["phase"] = "Running"

    def _environment(self, pod: Object, folder: Path) -> dict[str, str]:
        (container,) = pod["spec"]["containers"]
        env: dict[str, str] = {}
        for each in container["env"]:
            value = each.get("value")
            env[each["name"]] = self._resolve(pod, each) if value is None else value
        for name, value in env.items():
            env[name] = re.sub(r"\$\((\w+)\)", lambda match: env[match[1]], value)
        job = pod["metadata"]["labels"]["timonel.dev/job"]
        if job not in self.ports:
            with socket.create_server(("127.0.0.1", 0)) as free:
                self.ports[job] = free.getsockname()[1]
        number = next(_NUMBERS) % 64000
        # Each pod has an address of its own, as in a cluster.
        host = f"127.{64 + number // 62500}.{number // 250 % 250}.{1 + number % 250}"
        return {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
            **self.env,
            **env,
            "HOME": str(folder / "home"),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "TMPDIR": str(self.root / "tmp"),
            "TIMONEL_WORK_DIR": str(folder / "work"),
            "TIMONEL_COORDINATOR": f"127.0.0.1:{self.ports[job]}",
            "TIMONEL_POD_HOST": host,
            "KUBECONFIG": str(self.kubeconfig),
        }

    def _resolve(self, pod: Object, variable: Object) -> str:
        source = variable["valueFrom"]
        if "secretKeyRef" in source:
            reference = source["secretKeyRef"]
            secret = self.objects["secrets", reference["name"]]
            return str(secret["stringData"][reference["key"]])
        path = source["fieldRef"]["fieldPath"]
        if path == "metadata.name":
            return str(pod["metadata"]["name"])
        assert path == f"metadata.annotations['{_INDEX}']"
        return str(pod["metadata"]["annotations"][_INDEX])


def merge(found: Object, body: Mapping[str, Any]) -> None:
    """Apply a JSON merge patch (RFC 7386)."""
    for key, value in body.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(found.get(key), dict):
            merge(found[key], value)
        else:
            found[key] = value


def _owner(pod: Object) -> str:
    owners = pod["metadata"].get("ownerReferences") or [{"uid": ""}]
    return str(owners[0]["uid"])


def _index(pod: Object) -> int:
    return int(pod["metadata"]["annotations"][_INDEX])


def _is_active(pod: Object) -> bool:
    return pod["status"].get("phase") in {None, "Pending", "Running"}
