"""A port to listen at, and the names by which a browser may call it.

with open_port("127.0.0.1", None) as port:      # the first free one from 8765
    port.url, port.hosts
"""

import errno
import ipaddress
import os
import socket
from dataclasses import dataclass

from dualform.errors import CannotServe
from dualform.viewer.guard import Hosts

FIRST_PORT = 8765
_PORTS_TRIED = 100  # one after the other


@dataclass(frozen=True)
class Port:
    """A socket that listens, and the host as the user named it."""

    socket: socket.socket
    host: str

    @property
    def address(self) -> str:
        return str(self.socket.getsockname()[0])

    @property
    def number(self) -> int:
        return int(self.socket.getsockname()[1])

    @property
    def url(self) -> str:
        """Where a browser on this machine finds it."""
        address = self.address
        if self._is_any:
            address = "::1" if ":" in address else "127.0.0.1"
        return f"http://{in_url(address)}:{self.number}/"

    @property
    def hosts(self) -> Hosts:
        """The names it goes by: as the user named it, and by address."""
        names = {in_url(self.host), in_url(self.address)}
        if self._is_any:
            names |= {socket.gethostname().lower(), socket.getfqdn().lower()}
        return Hosts(self.number, frozenset(names), any_address=self._is_any)

    @property
    def is_private(self) -> bool:
        """Whether only this machine can reach it."""
        return ipaddress.ip_address(self.address.partition("%")[0]).is_loopback

    @property
    def _is_any(self) -> bool:
        return ipaddress.ip_address(self.address.partition("%")[0]).is_unspecified

    def __enter__(self) -> "Port":
        return self

    def __exit__(self, *error: object) -> None:
        self.socket.close()


def in_url(host: str) -> str:
    """Write a host as it stands in a URL."""
    return f"[{host.lower()}]" if ":" in host else host.lower()


def open_port(host: str, number: int | None) -> Port:
    """Listen at a port; without a number, at the first free one from 8765."""
    for candidate in range(FIRST_PORT, FIRST_PORT + _PORTS_TRIED) if number is None else [number]:
        try:
            return Port(_listen(host, candidate), host)
        except UnicodeError as error:
            raise CannotServe(f"{host!r} is no name of a machine: {error}") from error
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise CannotServe(f"cannot serve at {host}, port {candidate}: {error.strerror or error}") from error
    if number is None:
        raise CannotServe(f"no port from {FIRST_PORT} to {FIRST_PORT + _PORTS_TRIED - 1} is free; pass --port")
    raise CannotServe(f"port {number} is taken; pass another --port, or none to have a free one found")


def _listen(host: str, number: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":  # elsewhere it would share the port with another server
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen()  # two sockets may be bound to a port, but only one listens
    except OSError:
        listening.close()
        raise
    return listening
