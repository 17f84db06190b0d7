"""Which machine a request is for, and where it comes from: what a service without tokens goes by."""

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from floodmark.errors import HostRefused

Headers = Iterable[tuple[bytes, bytes]]


@lru_cache(1_000)
def is_loopback(host: str | None) -> bool:
    """Return whether a host, by its name or address, is this machine itself, as every machine calls itself.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "::1", "0.0.0.0", "marks.example", "")]
    [True, True, True, False, False, False]
    """
    if not host:
        return False
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


@lru_cache(1_000)
def host_of(header: str) -> str | None:
    """Return the host of a Host header or an origin, without its port.

    >>> host_of("127.0.0.1:8787"), host_of("[::1]:8787"), host_of("https://shop.example")
    ('127.0.0.1', '::1', 'shop.example')
    """
    try:
        return urlsplit(header if "://" in header else f"//{header}").hostname
    except ValueError:
        return None


def check_is_for_here(headers: Headers, client: str | None) -> None:
    """Refuse a request without a token unless it comes from this machine, for this machine, and from no foreign page.

    A page of another host that is open in a browser here can send requests here. It gives itself away by the name it
    asks for (its own, which it has let point here), or by its origin.
    """
    found: dict[bytes, list[str]] = {b"host": [], b"origin": [], b"forwarded": [], b"x-forwarded-for": []}
    for name, value in headers:
        if name in found:
            found[name].append(value.decode("latin-1"))
    hosts, origins = found[b"host"], found[b"origin"]
    if len(hosts) != 1 or not is_loopback(host_of(hosts[0])):
        raise _refused(f"The request is for the host {', '.join(hosts)!r:.100}.")
    for origin in origins:
        if not is_loopback(host_of(origin)):
            raise _refused(f"The request comes from a page of {origin!r:.100}.")
    if not is_loopback(client) or found[b"forwarded"] or found[b"x-forwarded-for"]:
        raise _refused("The request comes from another machine.")


def _refused(fact: str) -> HostRefused:
    return HostRefused(
        fact,
        rule="Without tokens a service is used from its own machine, by the name localhost or the address 127.0.0.1.",
        remedy="Use that name, or make a token with `floodmark token create` and send it along.",
    )
