"""The client of the API server over objects in memory, with a record of all requests."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

from timonel.engines.kubernetes import api as module
from timonel.engines.kubernetes.api import Api
from timonel.engines.kubernetes.api_errors import ApiCall
from timonel.engines.kubernetes.rights import ClusterRight


class MemoryApi(Api):
    """A cluster without controllers, in which all but routes belongs to one job or service.

    Attributes:
        objects: Objects by kind and name.
        used: Rights that the requests took.
        denied: Rights that the user lacks.
        unknown: Kinds that the server has no API for.
        dry_runs: Kinds that were only checked.
    """

    def __init__(self) -> None:
        configuration = SimpleNamespace(host="https://lab:6443", verify_ssl=True, ssl_ca_cert=None)
        client = SimpleNamespace(configuration=configuration)
        super().__init__("team", client, sleep=lambda _: None)
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.used: set[ClusterRight] = set()
        self.denied: set[ClusterRight] = set()
        self.unknown: set[str] = set()
        self.dry_runs: list[str] = []

    def _exchange(
        self, call: ApiCall, query: Mapping[str, str] | None, body: Any, _: str
    ) -> tuple[int, bytes]:
        status, answer = self._answer(call, dict(query or {}), body)
        return status, json.dumps(answer).encode()

    def _lines(self, call: ApiCall, query: Mapping[str, str], silence_s: float) -> Iterator[bytes]:
        """Yield no lines, and no changes."""
        del query, silence_s
        self._use(call)
        return iter(())

    def _use(self, call: ApiCall) -> ClusterRight:
        version, _ = module._RESOURCES[call.kind]
        right = ClusterRight(version.rpartition("/")[0], call.resource, call.verb)
        self.used.add(right)
        return right

    def _answer(self, call: ApiCall, query: dict[str, str], body: Any) -> tuple[int, Any]:
        if call.kind == "Version":
            return 200, {"gitVersion": "v1.37.0"}
        if call.kind == "SelfSubjectAccessReview":
            asked = body["spec"]["resourceAttributes"]
            parts = [asked["resource"], *filter(None, [asked.get("subresource")])]
            right = ClusterRight(asked["group"], "/".join(parts), asked["verb"])
            return 201, {"status": {"allowed": right not in self.denied}}
        if call.kind in self.unknown:
            return 404, {"message": "404 page not found"}
        right = self._use(call)
        if right in self.denied:
            message = f'User "me" cannot {right.verb} resource "{right.resource}"'
            return 403, {"kind": "Status", "reason": "Forbidden", "message": message}
        if "dryRun" in query:
            self.dry_runs.append(call.kind)
            return 201, body
        return self._stored(call, body)

    def _stored(self, call: ApiCall, body: Any) -> tuple[int, Any]:
        if call.verb == "list":
            kept = [found for (kind, _), found in self.objects.items() if kind == call.kind]
            return 200, {"items": kept, "metadata": {"resourceVersion": "1"}}
        assert call.name is not None
        if call.verb == "create":
            if (call.kind, call.name) in self.objects:
                return 409, {"kind": "Status", "reason": "AlreadyExists", "message": "exists"}
            metadata = {
                **body["metadata"],
                "uid": "1",
                "resourceVersion": "1",
                "creationTimestamp": "2026-01-01T00:00:00Z",
            }
            self.objects[call.kind, call.name] = {**body, "metadata": metadata}
            return 201, self.objects[call.kind, call.name]
        if (call.kind, call.name) not in self.objects:
            return 404, {"kind": "Status", "reason": "NotFound", "message": "not found"}
        if call.verb == "delete":
            if call.kind in {"HTTPRoute", "Ingress"}:
                del self.objects[call.kind, call.name]
            else:
                self.objects.clear()
            return 200, {}
        if call.verb == "update":
            self.objects[call.kind, call.name] = body
        if call.verb == "patch":
            self.objects[call.kind, call.name]["metadata"] |= body.get("metadata", {})
        return 200, self.objects[call.kind, call.name]
