"""Which hosts a sandbox may reach: entries of `Network.allow`, and addresses that are nobody's.

Pure rules, no I/O. May be known by the proxy; knows nothing else of the sandbox layer.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.errors import UsageError

__all__ = ["Address", "AllowList", "Endpoint", "parse_endpoint"]

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_DEFAULT_PORTS = frozenset({80, 443})
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*")
_NEVER = tuple(
    ipaddress.ip_network(block)
    for block in (
        *("::/96", "64:ff9b::/32", "2001::/32", "2002::/16"),  # carry an IPv4 address
        *("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32"),  # protocols, relays, a cloud's own
        *("fec0::/10", "100::/64"),
    )
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A host as it is compared (lower case, no final dot, addresses in shortest form) and a
    port (None: not said). `address` is set where the host is a literal one.

    >>> parse_endpoint("Example.COM.:8443")
    Endpoint(host='example.com', port=8443, address=None)
    """

    host: str
    port: int | None
    address: Address | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"


def parse_endpoint(text: str) -> Endpoint:
    """`host`, `host:port`, `[v6]`, `[v6]:port` or a bare IPv6 address. ValueError if it is
    none of them, or a number that some resolvers take for an address ("127.1", "0x7f000001").
    """
    host, port = _split(text.lower())
    address = unmapped(_literal(host))
    if address is not None:
        return Endpoint(address.compressed, port, address)
    host = host.removesuffix(".")
    labels = host.split(".")
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise ValueError("not a host name")
    if _NUMERIC.fullmatch(labels[-1]):
        raise ValueError("a number is not a host name")
    return Endpoint(host, port)


def _split(text: str) -> tuple[str, int | None]:
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or ":" not in host or (rest and not rest.startswith(":")):
            raise ValueError("a bracket is not closed")
        return host, _port(rest[1:]) if rest else None
    if text.count(":") > 1:
        return text, None
    host, colon, rest = text.partition(":")
    return host, _port(rest) if colon else None


def _port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
        raise ValueError("a port is a number from 1 to 65535")
    return int(text)


def _literal(host: str) -> Address | None:
    if "%" in host:
        raise ValueError("an address with a zone")
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        if ":" in host:
            raise
        return None


def unmapped(address: Address | None) -> Address | None:
    """The IPv4 address that `::ffff:a.b.c.d` really is."""
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


class AllowList:
    """Entries are `host`, `host:port`, `*.domain` or `*.domain:port`; without a port, 80 and
    443. `*.domain` is its subdomains, not itself. UsageError for anything else.

    >>> AllowList(["*.example.org"]).names(parse_endpoint("a.example.org:443"))
    True
    """

    def __init__(self, entries: Sequence[str]) -> None:
        self._exact: set[tuple[str, int]] = set()
        self._below: set[tuple[str, int]] = set()
        self._local_ports: set[int] = set()
        for entry in entries:
            self._add(entry)

    def _add(self, entry: str) -> None:
        wild = entry.startswith("*.")
        try:
            end = parse_endpoint(entry[2:] if wild else entry)
        except ValueError as error:
            raise UsageError(
                f"no host to allow: {error}",
                where=f"network.allow: {entry!r}",
                hint='"host", "host:port", "*.domain" or an address',
            ) from error
        if wild and end.address is not None:
            raise UsageError("an address has no subdomains", where=f"network.allow: {entry!r}")
        ports = _DEFAULT_PORTS if end.port is None else frozenset({end.port})
        (self._below if wild else self._exact).update((end.host, port) for port in ports)
        if end.host == "localhost" and end.port is not None:
            self._local_ports.add(end.port)

    def names(self, end: Endpoint) -> bool:
        """Whether that host and port (which must be said) are in the list."""
        if end.port is None:
            return False
        if (end.host, end.port) in self._exact:
            return True
        labels = end.host.split(".")
        return end.address is None and any(
            (".".join(labels[start:]), end.port) in self._below for start in range(1, len(labels))
        )

    def reaches(self, end: Endpoint, address: Address) -> bool:
        """Whether `address`, to which `end.host` resolved, may be connected to.

        A name gives only public addresses; others must be listed themselves with the port, or
        be the loopback of a listed `localhost:PORT`.
        """
        plain = unmapped(address) or address
        return (
            self.lists(plain, end.port)
            or (end.host == "localhost" and end.port in self._local_ports and plain.is_loopback)
            or is_public(plain)
        )

    def lists(self, address: Address, port: int | None) -> bool:
        """Whether this very address is an entry."""
        return port is not None and (address.compressed, port) in self._exact


def is_public(address: Address) -> bool:
    """Whether an address is on the public internet and nothing else: not loopback, private,
    link-local (where clouds keep credentials), shared, multicast, reserved or unspecified, nor
    an IPv6 form that carries an IPv4 address."""
    if any(address.version == block.version and address in block for block in _NEVER):
        return False
    return address.is_global and not (
        address.is_multicast
        or address.is_reserved
        or address.is_link_local
        or address.is_loopback
        or address.is_unspecified
        or address.is_private
    )
