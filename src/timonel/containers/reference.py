"""Names of images: ``[HOST[:PORT]/]REPOSITORY[:TAG][@DIGEST]``, as Docker parses them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from timonel.containers.credentials import without_user
from timonel.errors import SpecError
from timonel.storage.digests import is_digest

_HUB = "registry-1.docker.io"
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_HOST = re.compile(r"(?:[A-Za-z0-9][A-Za-z0-9.-]*|\[[0-9a-fA-F:]+\])(?::\d+)?")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class Reference:
    """Name of an image.

    Attributes:
        host: Host of the registry, with its port if it has one.
        repository: Repository in the registry.
        tag: Tag.
        digest: Digest, which takes precedence over the tag.
    """

    host: str
    repository: str
    tag: str = "latest"
    digest: str | None = None

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Parse the name of an image."""
        name, _, digest = text.partition("@")
        first, slash, rest = name.partition("/")
        host = first if slash and (first == "localhost" or "." in first or ":" in first) else ""
        repository, colon, tag = (rest if host else name).partition(":")
        tag = tag if colon else "latest"
        if not host or host == "docker.io":
            host = _HUB
            repository = repository if "/" in repository else f"library/{repository}"
        if (
            not _HOST.fullmatch(host)
            or not _REPOSITORY.fullmatch(repository)
            or not _TAG.fullmatch(tag)
            or (digest and not is_digest(digest))
        ):
            raise SpecError(
                f"{without_user(text)!r} is no name of an image",
                hint="write it as HOST/REPOSITORY:TAG, in lower case",
            )
        return cls(host, repository, tag, digest or None)

    @property
    def version(self) -> str:
        """Digest, or else the tag."""
        return self.digest or self.tag

    def with_digest(self, digest: str) -> Reference:
        """Return the name with a digest, which takes precedence over the tag."""
        return Reference(self.host, self.repository, self.tag, digest)

    def __str__(self) -> str:
        host = "docker.io" if self.host == _HUB else self.host
        ending = f"@{self.digest}" if self.digest else f":{self.tag}"
        return f"{host}/{self.repository}{ending}"
