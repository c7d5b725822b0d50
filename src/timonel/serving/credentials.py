"""Client credentials.

Imports little, because a command keeps this module in memory while its server runs.
"""

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
    """Client credentials and trusted server certificates.

    Args:
        key: An API key or a token; None to send none.
        ca_file: A file with the certificate authorities that may sign server certificates; None for
            the system's.
        certificate: The file with the certificate of the one expected server, whatever host name it
            is reached by; replaces ``ca_file``.
    """

    key: str | None = field(default=None, repr=False)
    ca_file: str | None = None
    certificate: str | None = None

    @classmethod
    def of(cls, key: str | None = None, ca_file: str | None = None) -> Self:
        """Return credentials from the arguments, with the environment as fallback."""
        return cls(
            key or os.environ.get(KEY_VARIABLE) or None,
            ca_file or os.environ.get(CA_VARIABLE) or None,
        )

    @property
    def headers(self) -> dict[str, str]:
        """HTTP headers to send with a request."""
        return {} if self.key is None else {"Authorization": f"Bearer {self.key}"}

    @property
    def curl_options(self) -> str:
        """Options for ``curl``, which takes the key from the environment."""
        key = "" if self.key is None else f'-H "Authorization: Bearer ${KEY_VARIABLE}" '
        trusted = self.certificate or self.ca_file
        return key if trusted is None else f"{key}--cacert {shlex.quote(trusted)} "

    def context(self) -> ssl.SSLContext:
        """Return an SSL context that trusts the configured certificates."""
        import ssl  # noqa: PLC0415 - most servers have no TLS, and it takes some MiB

        trusted = self.certificate or self.ca_file
        try:
            context = ssl.create_default_context(cafile=trusted)
        except (OSError, ValueError) as error:
            raise SpecError(f"cannot use the certificates in {trusted}: {error}") from error
        if self.certificate is not None:
            context.check_hostname = False
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context


ANONYMOUS = Credentials()
