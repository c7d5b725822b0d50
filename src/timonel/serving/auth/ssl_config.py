"""Read TensorFlow Serving's ``--ssl_config_file``: an SSLConfig with inline PEM texts.

No package ships its proto, so its four fields are declared here.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from timonel.errors import SpecError
from timonel.serving.auth.tls import Pem

_FIELDS = {"server_key": 9, "server_cert": 9, "custom_ca": 9, "client_verify": 8}
"""Field types by name, in field-number order: 9 is string, 8 is bool."""


def parse_ssl_config(text: str, origin: str) -> Pem:
    """Parse an SSLConfig in text form.

    Raises:
        SpecError: The text is not an SSLConfig, lacks a certificate or key, or verifies clients
            without an authority.
    """
    message: Any = _message_class()()
    try:
        text_format.Parse(text, message)
    except text_format.ParseError as error:
        raise SpecError(f"expected an SSLConfig in {origin}, got {error}") from error
    if not message.server_key or not message.server_cert:
        raise SpecError(f"expected server_key and server_cert in {origin}, got only one or neither")
    if message.client_verify and not message.custom_ca:
        raise SpecError(f"expected custom_ca with client_verify in {origin}, got none")
    return Pem(
        message.server_cert.encode(),
        message.server_key.encode(),
        message.custom_ca.encode() or None,
        message.client_verify,
    )


def read_ssl_config(path: str | None) -> Pem | None:
    """Read an SSLConfig file; None without a path.

    Raises:
        SpecError: The file cannot be read or is not a usable SSLConfig.
    """
    if path is None:
        return None
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"expected an SSLConfig in {path}, got {error}") from error
    return parse_ssl_config(text, path)


@cache
def _message_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(
        name="timonel/ssl_config.proto", package="tensorflow.serving", syntax="proto3"
    )
    message = file.message_type.add(name="SSLConfig")
    for number, (name, kind) in enumerate(_FIELDS.items(), start=1):
        message.field.add(name=name, number=number, type=kind, label=1)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(
        pool.FindMessageTypeByName("tensorflow.serving.SSLConfig")
    )
