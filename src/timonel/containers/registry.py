"""Client of a registry: blobs and manifests over the HTTP API of the OCI distribution spec."""

from __future__ import annotations

import io
import json
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import urlencode, urljoin, urlsplit

from timonel.containers.credentials import RegistryCredentials, credentials_for
from timonel.containers.image import INDEX_TYPE, MANIFEST_TYPE, parse_manifest
from timonel.containers.layers import Layer
from timonel.containers.reference import Reference
from timonel.containers.transport import HTTPError, Response, content_of, open_pool, timeout_for
from timonel.errors import CorruptError, InputError, NotFoundError
from timonel.storage.atomic import replacing
from timonel.storage.digests import digest_bytes, digest_file

_DOCKER = "application/vnd.docker.distribution.manifest"
_ACCEPTED = ", ".join((INDEX_TYPE, MANIFEST_TYPE, f"{_DOCKER}.list.v2+json", f"{_DOCKER}.v2+json"))
_BLOCK_BYTES = 1 << 20
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')


class _Answer(NamedTuple):
    """Answer of a registry, with its whole content."""

    status: int
    headers: Mapping[str, str]
    data: bytes


class Registry:
    """One repository of a registry. Thread-safe.

    Args:
        plain_http: Whether to use HTTP without TLS; None: only for this machine.
        credentials: Credentials; by default those of the user's files.
    """

    def __init__(
        self,
        reference: Reference,
        *,
        plain_http: bool | None = None,
        credentials: RegistryCredentials | None = None,
    ) -> None:
        self.reference = reference
        if plain_http is None:
            plain_http = re.sub(r":\d+$", "", reference.host) in {"localhost", "127.0.0.1", "[::1]"}
        scheme = "http" if plain_http else "https"
        self._root = f"{scheme}://{reference.host}/v2/{reference.repository}/"
        self._credentials = credentials or credentials_for(reference.host, os.environ)
        self._pool = open_pool()
        self._authorization: str | None = None
        self._lock = threading.Lock()

    def manifest(self, version: str | None = None) -> tuple[dict[str, Any], str]:
        """Return a manifest or index, and its digest.

        Args:
            version: A digest or tag; by default that of the reference.
        """
        version = version or self.reference.version
        answer = self._call("GET", f"manifests/{version}", {"Accept": _ACCEPTED})
        if answer.status == 404:
            raise NotFoundError(f"no image {self.reference} in the registry", hint="check its name")
        self._expect(answer, 200, "read")
        digest = digest_bytes(answer.data)
        if version.startswith("sha256:") and digest != version:
            raise CorruptError(f"the registry sent {digest} for the manifest {version}")
        content = parse_manifest(answer.data, str(self.reference))
        content.setdefault("mediaType", answer.headers.get("Content-Type"))
        return content, digest

    def blob(self, digest: str) -> bytes:
        """Return a small blob, such as the configuration of an image."""
        answer = self._call("GET", f"blobs/{digest}")
        self._expect(answer, 200, "read")
        if digest_bytes(answer.data) != digest:
            raise CorruptError(f"the registry sent other bytes than those of {digest}")
        return answer.data

    def fetch(self, digest: str, target: Path) -> None:
        """Download a blob into a file, unless it is there."""
        if target.is_file() and digest_file(target) == digest:
            return
        answer = self._open("GET", f"blobs/{digest}")
        if answer.status != 200:
            self._expect(self._read(answer), 200, "read")
        with replacing(target) as file:
            try:
                for block in answer.stream(_BLOCK_BYTES):
                    file.write(block)
            except HTTPError as error:
                raise InputError(
                    f"the download of {digest} from {self.reference.host} broke off: "
                    f"{_reason(error)}",
                    hint="try again",
                ) from error
            file.flush()
            if digest_file(Path(file.name)) != digest:
                raise CorruptError(f"the registry sent other bytes than those of {digest}")

    def has_blob(self, digest: str) -> bool:
        """Return whether the repository has a blob."""
        answer = self._call("HEAD", f"blobs/{digest}")
        if answer.status != 404:
            self._expect(answer, 200, "read")
        return answer.status == 200

    def mount_blob(self, digest: str, repository: str) -> bool:
        """Take a blob from another repository of the registry; return whether that is possible.

        Registries may refuse it, as for a repository that the user must not read.
        """
        query = urlencode({"mount": digest, "from": repository})
        answer = self._call("POST", f"blobs/uploads/?{query}")
        if answer.status != 201:
            self._expect(answer, 202, "write")
        return answer.status == 201

    def push_layer(self, layer: Layer) -> bool:
        """Upload a layer unless the repository has it.

        Args:
            layer: The layer, with a file unless the repository has it.

        Returns:
            Whether bytes were uploaded.
        """
        if self.has_blob(layer.digest):
            return False
        if layer.path is None:
            raise NotFoundError(f"{self.reference} lacks the layer {layer.digest} of the base")
        answer = self._call("POST", "blobs/uploads/")
        self._expect(answer, 202, "write")
        with layer.path.open("rb") as file:
            self._put(answer, layer.digest, layer.size, file)
        return True

    def push_bytes(self, content: bytes) -> None:
        """Upload a small blob unless the repository has it."""
        digest = digest_bytes(content)
        if not self.has_blob(digest):
            answer = self._call("POST", "blobs/uploads/")
            self._expect(answer, 202, "write")
            self._put(answer, digest, len(content), content)

    def push_manifest(self, content: bytes, media_type: str, version: str) -> None:
        """Upload a manifest or an index under a tag or its digest."""
        answer = self._call(
            "PUT", f"manifests/{version}", {"Content-Type": media_type}, body=content
        )
        self._expect(answer, 201, "write")

    def push_tag(self, content: bytes, media_type: str) -> None:
        """Give the tag to a manifest or an index."""
        self.push_manifest(content, media_type, self.reference.tag)

    def named(self, digest: str) -> str:
        """Return the image's name with a digest."""
        return str(self.reference.with_digest(digest))

    def _put(self, opened: _Answer, digest: str, size: int, body: bytes | IO[bytes]) -> None:
        if "Location" not in opened.headers:
            raise InputError(
                f"the registry {self.reference.host} names no address for an upload",
                hint="check that it is a registry, and not another server",
            )
        location = urljoin(self._root, opened.headers["Location"])
        separator = "&" if "?" in location else "?"
        url = f"{location}{separator}{urlencode({'digest': digest})}"
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        self._expect(self._call("PUT", url, headers, body=body), 201, "write")

    def _call(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        *,
        body: Any = None,
    ) -> _Answer:
        """Send a request and read the answer."""
        return self._read(self._open(method, path, headers, body=body))

    def _read(self, answer: Response) -> _Answer:
        """Read the rest of an answer."""
        try:
            return _Answer(answer.status, answer.headers, content_of(answer))
        except HTTPError as error:
            raise InputError(
                f"an answer of the registry {self.reference.host} broke off: {_reason(error)}",
                hint="try again",
            ) from error
        except ValueError as error:
            raise InputError(
                f"the registry {self.reference.host} {error}",
                hint="check that it is a registry, and not another server",
            ) from error

    def _open(
        self,
        method: str,
        path: str,
        headers: Mapping[str, str] | None = None,
        *,
        body: Any = None,
    ) -> Response:
        """Send a request; return the answer, whose content has not been read."""
        url = urljoin(self._root, path)
        is_own = _origin(url) == _origin(self._root)
        for is_first in (True, False):
            # Storage that a registry redirects to must not see the credentials.
            known = {"Authorization": self._authorization} if self._authorization and is_own else {}
            try:
                answer = self._pool.request(
                    method,
                    url,
                    headers={**(headers or {}), **known},
                    body=body,
                    preload_content=False,
                    timeout=timeout_for(method),
                )
            except HTTPError as error:
                if "WRONG_VERSION_NUMBER" in str(error):
                    raise InputError(
                        f"{self.reference.host} speaks HTTP, not HTTPS", hint="add --plain-http"
                    ) from error
                raise InputError(
                    f"the registry {self.reference.host} does not answer: {_reason(error)}",
                    hint="check its address and your network; --plain-http is for registries "
                    "without TLS",
                ) from error
            if answer.status != 401 or not is_first:
                break
            self._read(answer)  # so that its connection can be used again
            self._authorize(answer.headers.get("WWW-Authenticate", ""))
            if isinstance(body, io.IOBase):
                body.seek(0)
        return answer

    def _authorize(self, challenge: str) -> None:
        """Authenticate as the challenge of an answer requires."""
        kind, _, rest = challenge.partition(" ")
        found = self._credentials
        with self._lock:
            if kind.lower() == "basic" and found is not None:
                self._authorization = found.basic
            elif kind.lower() == "bearer":
                self._authorization = self._token(dict(_PARAMETER.findall(rest)))

    def _token(self, challenge: Mapping[str, str]) -> str | None:
        """Return a token from the authorization server of a registry.

        Follows distribution.github.io/distribution/spec/auth/token and .../auth/oauth.
        """
        scope = f"repository:{self.reference.repository}:pull,push"
        if self._credentials is None:
            scope = challenge.get("scope") or f"repository:{self.reference.repository}:pull"
        fields = {"service": challenge.get("service", ""), "scope": scope}
        found, realm = self._credentials, challenge.get("realm", "")
        try:
            if found is not None and found.is_token:
                body = {"grant_type": "refresh_token", "refresh_token": found.password}
                answer = self._pool.request(
                    "POST",
                    realm,
                    fields={**fields, **body, "client_id": "timonel"},
                    encode_multipart=False,
                    preload_content=False,
                )
            else:
                headers = {} if found is None else {"Authorization": found.basic}
                answer = self._pool.request(
                    "GET", realm, fields=fields, headers=headers, preload_content=False
                )
            content = json.loads(content_of(answer))
            token = content.get("token") or content.get("access_token")
        except (HTTPError, ValueError, AttributeError, RecursionError):
            token = None
        return None if token is None else f"Bearer {token}"

    def _expect(self, answer: _Answer, status: int, verb: str) -> None:
        if answer.status == status:
            return
        place = f"{self.reference.host}/{self.reference.repository}"
        if answer.status in {401, 403}:
            known = "no credentials" if self._credentials is None else "the credentials are refused"
            raise InputError(
                f"not allowed to {verb} {place}: {known}",
                hint=f"log in with 'docker login {self.reference.host}' or 'podman login'",
            )
        if answer.status == 404:
            raise NotFoundError(f"no repository {place}", hint="create it in the registry first")
        raise InputError(f"the registry cannot {verb} {place}: {_errors(answer)}")


def _origin(url: str) -> tuple[str, str | None, int | None]:
    """Return scheme, host and port of a URL."""
    parts = urlsplit(url)
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _errors(answer: _Answer) -> str:
    try:
        errors = json.loads(answer.data)["errors"]
        return "; ".join(str(each.get("message") or each["code"]) for each in errors)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"status {answer.status}"


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", None) or error
    return str(getattr(reason, "args", [reason])[-1])
