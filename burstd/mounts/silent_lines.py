"""Which nodes do not acknowledge what ssh sends them: the line is cut, or the machine is gone.

ssh says nothing until it gives up. The kernel's table of TCP connections tells earlier, and costs the node nothing.
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from burstd.domain.claim import Claim
from burstd.domain.mounts import SilentLine

RETRANSMISSIONS = 4
"""So many in a row without an acknowledgement, which take 3 s and more."""
_TABLES = (Path("/proc/thread-self/net/tcp"), Path("/proc/thread-self/net/tcp6"))
_ESTABLISHED, _RETRANSMITS = "01", "01:"
_KEEPALIVES = 4 / 3
"""ssh sends three words to a silent node, one each third of its limit, and waits as long for an answer to the last."""

Peer = tuple[str, int]
"""Address and port."""


class SilentLines:
    """Remembers since when lines are silent. Not thread-safe."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def step(self, claims: Iterable[Claim], port: int, line_timeout_s: float, now: float) -> Mapping[str, SilentLine]:
        """By claim id, the lines of these that are silent. ``port``: sshd's."""
        peers = silent_peers(table.read_text(encoding="ascii") for table in _TABLES if table.exists())
        silent = [claim.id for claim in claims if claim.address and (_canonical(claim.address), port) in peers]
        self._since = {claim_id: self._since.get(claim_id, now) for claim_id in silent}
        return {
            claim_id: SilentLine(since, since + _KEEPALIVES * line_timeout_s) for claim_id, since in self._since.items()
        }


def silent_peers(tables: Iterable[str]) -> frozenset[Peer]:
    """Peers of connections, in tables as /proc/net/tcp, that acknowledge nothing."""
    return frozenset(peer for table in tables for line in table.splitlines()[1:] for peer in _silent_peer(line))


def _silent_peer(line: str) -> Iterator[Peer]:
    fields = line.split()
    state, timer, retransmissions = fields[3], fields[5], fields[6]
    if state == _ESTABLISHED and timer.startswith(_RETRANSMITS) and int(retransmissions, 16) >= RETRANSMISSIONS:
        address, _, port = fields[2].partition(":")
        # Words of 32 bits in the byte order of the host.
        words = [int(address[i : i + 8], 16) for i in range(0, len(address), 8)]
        yield _canonical(ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))), int(port, 16)


def _canonical(address: str | ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return str(address)
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)
