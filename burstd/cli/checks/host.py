"""Whether machines of a cloud can find slurmctld by what slurm.conf and burstd.toml say, as far as the head knows."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence

from burstd.slurm.commands.controller import controller_hosts
from burstd.slurm.config.check import SlurmConfFinding

Resolve = Callable[[str], Sequence[str]]
"""Addresses of a host, by name or as it stands; empty: it cannot be resolved."""
_LOST = "a machine boots, does not find slurmctld, and does not become a node"


def slurmctld_findings(
    config: Mapping[str, str], conf_server: str, resolve: Resolve, is_local: Callable[[str], bool]
) -> Iterator[SlurmConfFinding]:
    """``config``: what slurmctld says of its settings. ``conf_server``: of burstd.toml. ``is_local``: of an address."""
    controllers: set[str] = set()
    for name, address in controller_hosts(config).items():
        host = address or name
        controllers.update(resolve(host))
        fault = _fault(host, resolve(host))
        # A name is another address elsewhere; that it has none in slurm.conf is said already.
        if fault and (address or not resolve(host)):
            yield SlurmConfFinding(
                f"SlurmctldHost={name}" + (f"({address})" if address else ""),
                "an address that machines of the cloud reach", fault, _LOST,
                f"write SlurmctldHost={name}(ADDRESS) with the head's address and restart slurmctld",
            )  # fmt: skip
    for server in filter(None, conf_server.split(",")):
        host = server.rpartition(":")[0] if re.search(r"[^:]:\d+$", server) else server
        found = [*resolve(host)]
        fault = _fault(host, found)
        if fault or not any(is_local(address) or address in controllers for address in found):
            named = host if host in found else f"{host} is {' and '.join(found)}"
            yield SlurmConfFinding(
                "slurm.conf_server", "an address of this host, or of a SlurmctldHost",
                fault or f"{named}, which this host does not have", _LOST,
                "correct conf_server in [slurm] of burstd.toml; a port that another host forwards here will do too",
                not fault,
            )  # fmt: skip


def resolved(host: str) -> list[str]:
    """What this host's resolver says, each address once."""
    try:
        rows = socket.getaddrinfo(host.strip("[]"), None, type=socket.SOCK_STREAM)
    except OSError:
        return []
    return list(dict.fromkeys(str(row[4][0]).partition("%")[0] for row in rows))


def has_address(address: str) -> bool:
    """Whether one of this host's interfaces has it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def _fault(host: str, addresses: Sequence[str]) -> str:
    """What is wrong with a host's addresses for others than itself; empty: nothing is known to be."""
    if not addresses:
        return f"{host}, which cannot be resolved here"
    if all(ipaddress.ip_address(address).is_loopback for address in addresses):
        return f"{' and '.join(addresses)}, which every machine has for itself"
    return ""
