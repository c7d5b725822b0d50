"""Certificates for tests: an authority, and leaves that it signs."""

from __future__ import annotations

import datetime as dt
import ipaddress

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

_DAY = dt.timedelta(days=1)
_USAGES = (
    "digital_signature",
    "content_commitment",
    "key_encipherment",
    "data_encipherment",
    "key_agreement",
    "key_cert_sign",
    "crl_sign",
    "encipher_only",
    "decipher_only",
)


class Authority:
    """Signs certificates for loopback servers and for named clients."""

    def __init__(self, name="test authority"):
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(name)
        self._key_id = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        usage = dict.fromkeys(_USAGES, False) | {"key_cert_sign": True}
        builder = (
            _builder(self._name, self._name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.KeyUsage(**usage), critical=True)
            .add_extension(self._key_id, critical=False)
        )
        self._certificate = builder.sign(self._key, hashes.SHA256())

    @property
    def pem(self):
        return self._certificate.public_bytes(serialization.Encoding.PEM)

    def issue(self, folder, name, *, days=1):
        """Write NAME.pem and NAME.key; return their paths."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = [
            x509.DNSName("localhost"),
            x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
        ]
        leaf = (
            _builder(_named(name), self._name, key.public_key(), days)
            .add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._key_id),
                critical=False,
            )
            .sign(self._key, hashes.SHA256())
        )
        certificate, private = folder / f"{name}.pem", folder / f"{name}.key"
        certificate.write_bytes(leaf.public_bytes(serialization.Encoding.PEM))
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return certificate, private


def _named(name):
    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])


def _builder(subject, issuer, key, days=1):
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 2 * _DAY)
        .not_valid_after(now + days * _DAY)
    )
