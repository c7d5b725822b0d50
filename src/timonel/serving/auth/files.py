"""Check the files of API keys and TLS before a server is started."""

from __future__ import annotations

from pathlib import Path

from timonel.serving.settings.auth import AccessSettings


def check_access_files(settings: AccessSettings) -> None:
    """Check that a server can use the files of its access.

    Raises:
        TimonelError: One is missing, or cannot be used.
    """
    # Most servers need neither of these modules.
    if settings.api_keys is not None:
        from timonel.serving.auth.keys import read_entries  # noqa: PLC0415

        read_entries(Path(settings.api_keys))
    if settings.tls is not None:
        from timonel.serving.auth.tls import read_pem  # noqa: PLC0415

        read_pem(settings.tls)
