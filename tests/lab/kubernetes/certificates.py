"""A certificate authority for one control plane, for a day."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFE = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Pair:
    """Files: a certificate and its private key, both PEM."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates into ``folder``; its own is ``ca.crt`` there."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name("burstd-lab", "")
        self._usage = x509.KeyUsage(*(True, False, False, False, False, True, False, False, False))
        self.cert = folder / "ca.crt"
        constraints = (x509.BasicConstraints(ca=True, path_length=None), self._usage)
        self.cert.write_bytes(_pem(self._sign(self._name, self._key, *constraints)))

    def pair(self, name: str, *, organization: str = "", hosts: Sequence[str] = ()) -> Pair:
        """A client's certificate for the user ``name`` in the group ``organization``, a server's with ``hosts``."""
        key = ec.generate_private_key(ec.SECP256R1())
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        extensions: list[x509.ExtensionType] = [x509.ExtendedKeyUsage(purposes)]
        if hosts:
            extensions.append(x509.SubjectAlternativeName([_host(host) for host in hosts]))
        stem = name.replace(":", "-")
        made = Pair(self._folder / f"{stem}.crt", self._folder / f"{stem}.key")
        made.cert.write_bytes(_pem(self._sign(_name(name, organization), key, *extensions)))
        write_key(made.key, key)
        return made

    def _sign(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *extensions: x509.ExtensionType
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder(self._name, subject, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - _LIFE).not_valid_after(now + _LIFE)
        for extension in extensions:
            critical = isinstance(extension, x509.BasicConstraints | x509.KeyUsage)
            builder = builder.add_extension(extension, critical=critical)
        return builder.sign(self._key, hashes.SHA256())


def signing_key(folder: Path) -> tuple[Path, Path]:
    """A new key's private and public files, for tokens of service accounts."""
    key = ec.generate_private_key(ec.SECP256R1())
    private, public = folder / "tokens.key", folder / "tokens.pub"
    write_key(private, key)
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    public.write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, form))
    return private, public


def write_key(file: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """As PEM, for us alone."""
    file.touch(mode=0o600)
    form, encryption = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    file.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, encryption))


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _name(common: str, organization: str) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if organization:
        parts.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(parts)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
