"""Certificates that tests make for themselves: an authority, brokers, clients, good and expired ones, all PEM."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from integration.ports import HOST

__all__ = ["Authority", "Identity"]

DAY = dt.timedelta(days=1)


@dataclass(frozen=True)
class Identity:
    """A certificate and its key in PEM files; `both` holds the key and then the certificate, as Kafka wants them."""

    certificate: Path
    key: Path
    both: Path


class Authority:
    """A certificate authority of its own."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder  # Gets ``<name>.pem``, the authority's certificate, and a folder for each identity.
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = dt.datetime.now(dt.timezone.utc)
        own = (
            x509.CertificateBuilder()
            .subject_name(self._name)
            .issuer_name(self._name)
            .public_key(self._key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 30 * DAY)
            .not_valid_after(now + 30 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = folder / f"{name}.pem"
        self.certificate.write_bytes(own.public_bytes(serialization.Encoding.PEM))

    def issue(
        self, name: str, *, address: str = HOST, days: tuple[int, int] = (-20, 20), password: str = ""
    ) -> Identity:
        """Sign a certificate.

        Parameters
        ----------
        name : str
            Common name, and name of its files.
        address : str
            The only IP address that it is for.
        days : tuple[int, int]
            From when until when it is valid, from today.
        password : str
            Encrypts the key in `Identity.key`.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        now = dt.datetime.now(dt.timezone.utc)
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + days[0] * DAY)
            .not_valid_after(now + days[1] * DAY)
            .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))]), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        form = serialization.PrivateFormat.PKCS8
        open_key = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        locked = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
        folder = self._folder / name
        folder.mkdir()
        found = Identity(folder / "certificate.pem", folder / "key.pem", folder / "both.pem")
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        found.certificate.write_bytes(pem)
        found.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, locked))
        found.both.write_bytes(open_key + pem)
        return found
