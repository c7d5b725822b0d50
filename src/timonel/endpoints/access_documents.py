"""Contents of the files of an endpoint's access, in confidential documents of its engine.

<name>/<id>.json    endpoint-access document, write-once; a revision names it as `Access.contents`

The id is random. More people may read revisions than keys, and a digest would tell them whether a
guessed key is right.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Final, Self

from pydantic import TypeAdapter

from timonel.endpoints.access_files import read_files
from timonel.endpoints.engine import FOLDER
from timonel.endpoints.folder import EndpointFolder
from timonel.endpoints.gateway.parts import Secrets
from timonel.endpoints.spec import Access
from timonel.engines import ServiceEngine
from timonel.errors import CorruptError, NotFoundError, SpecError, TimonelError
from timonel.storage.document_store import DocumentStore

_KIND: Final = "endpoint-access"
_SECRETS = TypeAdapter(Secrets)
_CURE: Final = "deploy it with all files of --tls-cert, --tls-key, --api-keys and --jwt-jwks again"


@dataclass(frozen=True)
class AccessDocuments:
    """Confidential documents of one endpoint."""

    documents: DocumentStore
    name: str

    @classmethod
    def of(cls, engine: ServiceEngine, name: str) -> Self:
        """Return the documents of an endpoint."""
        documents = engine.confidential(FOLDER)
        if documents is None:
            raise SpecError(
                f"{engine.name} keeps no keys or certificates of endpoints",
                hint="have an Ingress or a Gateway of the cluster check clients",
            )
        return cls(documents, name)

    def read(self, contents: str) -> Secrets:
        """Return contents by their id."""
        name = self._document(contents)
        try:
            return _SECRETS.validate_python(self.documents.read(name, _KIND)["contents"])
        except NotFoundError as error:
            raise NotFoundError(
                f"the keys or the certificate of {self.name} are missing: {error}", hint=_CURE
            ) from error
        except (KeyError, ValueError):
            # The cause would show what it contains.
            raise CorruptError(
                f"the keys or the certificate of {self.name} are damaged: "
                f"{self.documents.place(name)}",
                hint=_CURE,
            ) from None

    def changed(self, access: Access, given: Collection[str]) -> Secrets | None:
        """Return the contents of an access; None if they are those that it names.

        Args:
            given: Fields whose files are read from this machine; others keep what is stored.
        """
        new, stored = read_files(access, given), Secrets()
        if access.contents is not None:
            try:
                stored = self.read(access.contents)
            except (CorruptError, NotFoundError):
                if not new.has(access):
                    raise
        contents = _merged(access, new, stored)
        return None if contents == stored else contents

    @contextlib.contextmanager
    def adding(self, contents: Secrets, endpoint: EndpointFolder, after: int) -> Iterator[str]:
        """Add contents for a revision that the block makes, and yield their id.

        Without that revision, they are removed.

        Args:
            after: Number of its latest revision; 0 for a new endpoint.
        """
        # Of deployments that were killed. Another one that has added contents by now cannot be the
        # first revision, too.
        left = () if after else self.documents.find(self.name)
        added = secrets.token_hex(16)
        body = {"contents": _SECRETS.dump_python(contents, mode="json")}
        self.documents.create(self._document(added), _KIND, body)
        try:
            yield added
        except BaseException:
            with contextlib.suppress(TimonelError):
                if not _is_named(added, endpoint, after):
                    self.documents.remove(self._document(added))
            raise
        with contextlib.suppress(TimonelError):  # they are removed with the endpoint
            for name in left:
                self.documents.remove(name)

    def remove(self) -> None:
        """Remove all documents of the endpoint."""
        self.documents.remove(self.name)

    def _document(self, contents: str) -> str:
        return f"{self.name}/{contents}.json"


def _is_named(contents: str, endpoint: EndpointFolder, after: int) -> bool:
    """Return whether a later revision names contents."""
    later = (number for number in endpoint.numbers() if number > after)
    return any(endpoint.revision(number).spec.access.contents == contents for number in later)


def _merged(access: Access, new: Secrets, stored: Secrets) -> Secrets:
    """Return what an access needs, new where it is given."""
    return Secrets(
        api_keys=None if access.api_keys is None else new.api_keys or stored.api_keys,
        certificate=None if access.tls is None else new.certificate or stored.certificate,
        jwks=(new.jwks or stored.jwks) if "jwt" in access.files else None,
    )
