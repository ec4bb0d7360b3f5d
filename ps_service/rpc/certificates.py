"""The certificates of an owner, for gRPC and for sockets, which are read again when their files change."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import grpc

from ps_wire.errors import InvalidArgumentError
from ps_wire.runtime.locks import ReportingLock

if TYPE_CHECKING:
    import ssl

    from ps_wire.tls import ServerTLS

_log = logging.getLogger(__name__)


class OwnerCertificates:
    """Looks at each handshake whether a file has changed, so that no restart is needed. While what the files have
    cannot be used, as in the middle of a change, the certificates before stay.

    Safe to use from several threads. Raises `InvalidArgumentError` if the files cannot be used at first.
    """

    def __init__(self, tls: ServerTLS) -> None:
        self._tls = tls
        self._lock = ReportingLock()
        self._stamp = tls.stamp()
        self._context, self._configuration = tls.context(), _configuration(tls)
        self._is_told = False

    def credentials(self) -> grpc.ServerCredentials:
        """For a gRPC server."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration, self._current, require_client_authentication=self._tls.client_ca is not None
        )

    def context(self) -> ssl.SSLContext:
        """For the next connection of a socket."""
        with self._lock:
            self._look()
            return self._context

    def changing_context(self) -> ssl.SSLContext:
        """For a server that takes one for all connections. Each of them gets the certificate of its time."""
        context = self._tls.context()

        def choose(connection: ssl.SSLObject, name: str | None, now: ssl.SSLContext) -> None:
            connection.context = self.context()

        context.sni_callback = choose
        return context

    def _current(self) -> grpc.ServerCertificateConfiguration:
        with self._lock:
            self._look()
            return self._configuration

    def _look(self) -> None:
        try:
            stamp = self._tls.stamp()
            if stamp == self._stamp:
                return
            self._context, self._configuration = self._tls.context(), _configuration(self._tls)
        except InvalidArgumentError as error:
            if not self._is_told:
                _log.warning("the certificate that was used before stays: %s", error)
            self._is_told = True
            return
        self._stamp, self._is_told = stamp, False
        _log.info("%s was read again", self._tls.cert)


def _configuration(tls: ServerTLS) -> grpc.ServerCertificateConfiguration:
    found = tls.read()
    return grpc.ssl_server_certificate_configuration([(found.key, found.cert)], found.client_ca)
