"""Certificates with which the processes of a gang know each other.

All processes of a gang have the same certificate, signed by an authority of this gang alone, or each has one of a
user's own authority. Each end of a connection checks the other's. They come in environment variables, so that a
launcher gives them to a rank in the way in which it gives the token.
"""

from __future__ import annotations

import datetime as dt
import os
import ssl
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pbg_tasks.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import CertificateBuilder

VARIABLES = {"authority": "PBG_TLS_CA", "certificate": "PBG_TLS_CERTIFICATE", "key": "PBG_TLS_KEY"}
"""Environment variables by attribute: each holds PEM text, or the path of a file with it."""
NAME = "pbg-rank"
"""Host name in a gang's certificate, which ranks do not compare."""
_BEGIN = "-----BEGIN "
_SKEW = dt.timedelta(hours=1)  # by which the clocks of two machines may differ


@dataclass(frozen=True)
class Certificates:
    """Certificate of a gang's process.

    Attributes:
        authority: certificates that sign those of all processes, in PEM.
        certificate: of this process, in PEM, with those between it and the authority.
        key: private key of the certificate, in PEM.
    """

    authority: str
    certificate: str
    key: str = field(repr=False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self | None:
        """Read the certificates of this process.

        Returns:
            The certificates; None where no variable is set.

        Raises:
            ConfigError: some are set and others are not, or one is no PEM; the variable is named.
        """
        given = {name: environment.get(variable, "") for name, variable in VARIABLES.items()}
        missing = [VARIABLES[name] for name, text in given.items() if not text]
        if len(missing) == len(VARIABLES):
            return None
        if missing:
            raise ConfigError(f"{missing[0]}: not set; ranks need all of {', '.join(VARIABLES.values())}, or none")
        return cls(**{name: _pem(VARIABLES[name], text) for name, text in given.items()}).checked()

    def environment(self) -> dict[str, str]:
        """Return the environment variables for a process."""
        return {variable: getattr(self, name) for name, variable in VARIABLES.items()}

    def checked(self) -> Self:
        """Return itself, if the certificates can be used.

        Raises:
            ConfigError: one is damaged, or the key is of another certificate; the variable is named.
        """
        for server in (False, True):
            self._context(server=server)
        return self

    @cached_property
    def connecting(self) -> ssl.SSLContext:
        """Settings of the connecting end."""
        return self._context(server=False)

    @cached_property
    def listening(self) -> ssl.SSLContext:
        """Settings of the listening end."""
        return self._context(server=True)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of this process's certificate."""
        return sha256(ssl.PEM_cert_to_DER_cert(_first(self.certificate))).digest()

    def _context(self, *, server: bool) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # pods have addresses that no certificate can name; the authority is the gang's
        context.verify_mode = ssl.CERT_REQUIRED
        if server:
            context.num_tickets = 0  # no connection is resumed
        try:
            context.load_verify_locations(cadata=self.authority)
        except (ssl.SSLError, ValueError):
            raise ConfigError(f"{VARIABLES['authority']}: holds no certificate in PEM that can be read") from None
        self._load_own(context)
        return context

    def _load_own(self, context: ssl.SSLContext) -> None:
        """Load the certificate and its key.

        ``ssl`` reads them from a file only, so one is made in memory.
        """
        file = os.memfd_create("certificate", os.MFD_CLOEXEC)
        try:
            Path(f"/proc/self/fd/{file}").write_text(f"{self.certificate}\n{self.key}\n", encoding="ascii")
            context.load_cert_chain(f"/proc/self/fd/{file}", password="")  # otherwise it would be asked for
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(
                f"{VARIABLES['certificate']} and {VARIABLES['key']}: are no certificate in PEM and its unencrypted key "
                f"({getattr(error, 'reason', None) or error})"
            ) from None
        finally:
            os.close(file)


def make_certificates(lifetime: dt.timedelta) -> Certificates:
    """Make an authority for one gang, and a certificate of it.

    The authority's own key is forgotten, so that it never signs another.

    Raises:
        ConfigError: the package ``cryptography`` is not installed.
    """
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID
    except ImportError:
        raise ConfigError(
            "rank_tls: making certificates takes the package `cryptography`: pip install 'pbg-tasks[tls]', or set "
            f"{', '.join(VARIABLES.values())}"
        ) from None
    signer, own = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _draft("authority", signer, lifetime).add_extension(x509.BasicConstraints(True, 0), critical=True)
    usages = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH])
    names = x509.SubjectAlternativeName([x509.DNSName(NAME)])
    certificate = _draft("rank", own, lifetime).add_extension(usages, critical=False)
    certificate = certificate.add_extension(names, critical=False)
    pem = serialization.Encoding.PEM
    texts = [
        *(draft.sign(signer, hashes.SHA256()).public_bytes(pem) for draft in (authority, certificate)),
        own.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    ]
    return Certificates(*(text.decode("ascii") for text in texts))


def _draft(name: str, key: EllipticCurvePrivateKey, lifetime: dt.timedelta) -> CertificateBuilder:
    from cryptography import x509

    now = dt.datetime.now(dt.UTC)
    subject, issuer = (
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"pbg-tasks {each}")]) for each in (name, "authority")
    )
    draft = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    draft = draft.serial_number(x509.random_serial_number())
    return draft.not_valid_before(now - _SKEW).not_valid_after(now + lifetime)


def _pem(variable: str, given: str) -> str:
    if _BEGIN in given:
        return given
    try:
        return Path(given).read_text(encoding="ascii")
    except (OSError, UnicodeDecodeError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no PEM"
        raise ConfigError(f"{variable}: is neither PEM nor a file that can be read: {reason}") from None


def _first(pem: str) -> str:
    """Return the first certificate of some."""
    end = "-----END CERTIFICATE-----"
    start = pem.find(f"{_BEGIN}CERTIFICATE-----")
    return pem[start : pem.find(end, start) + len(end)]
