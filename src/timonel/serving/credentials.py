"""Who asks a server. Imports next to nothing, as a command holds it while its server serves."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from timonel.errors import SpecError

if TYPE_CHECKING:
    import ssl

KEY_VARIABLE = "TIMONEL_API_KEY"
CA_VARIABLE = "TIMONEL_TLS_CA"


@dataclass(frozen=True)
class Credentials:
    """How a client proves who it is, and what it believes of servers.

    Args:
        key: An API key or a token; none to show nothing.
        ca_file: A file with the authorities that vouch for servers; none for the system's.
        certificate: The file with the certificate of the one server that is meant, whatever name
            it is reached by; instead of ``ca_file``.
    """

    key: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    certificate: str | None = None

    @classmethod
    def of(cls, key: str | None = None, ca_file: str | None = None) -> Self:
        """Return a caller by what is given, and by the environment for what is not."""
        return cls(
            key or os.environ.get(KEY_VARIABLE) or None,
            ca_file or os.environ.get(CA_VARIABLE) or None,
        )

    @property
    def headers(self) -> dict[str, str]:
        """What a request shows."""
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}

    @property
    def curl_options(self) -> str:
        """The same for a line of ``curl``, with the key left to the environment."""
        key = "" if self.key is None else f'-H "Authorization: Bearer ${KEY_VARIABLE}" '
        trusted = self.certificate or self.ca_file
        return key if trusted is None else f"{key}--cacert {shlex.quote(trusted)} "

    def context(self) -> ssl.SSLContext:
        """Return what a connection over TLS trusts.

        Raises:
            SpecError: A file cannot be used.
        """
        import ssl  # noqa: PLC0415 - most servers have no TLS, and it takes some MiB

        trusted = self.certificate or self.ca_file
        try:
            context = ssl.create_default_context(cafile=trusted)
        except (OSError, ValueError) as error:
            raise SpecError(f"expected certificates in PEM in {trusted}, got {error}") from error
        if self.certificate is not None:
            context.check_hostname = False
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context


ANONYMOUS = Credentials()
