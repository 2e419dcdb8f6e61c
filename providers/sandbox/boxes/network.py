"""A lab's network: one bridge, in a namespace of its own or on the machine itself, and a namespace for each host."""

from __future__ import annotations

import hashlib
import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from providers.sandbox.boxes.errors import NetworkFailed
from providers.sandbox.boxes.machine import need_root, output_of, tool_path

_NETNS = Path("/run/netns")
_NAME = re.compile(r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")


def _short(word: str, digits: int) -> str:
    """A few digits that stand for a word where the kernel gives only 15 letters to a device name."""
    return hashlib.sha256(word.encode()).hexdigest()[:digits]


def _mac(address: str) -> str:
    """The MAC address that goes with an IP address."""
    return "02:62:" + ":".join(f"{octet:02x}" for octet in ipaddress.ip_address(address).packed[-4:])


@dataclass(frozen=True, slots=True)
class LabNetwork:
    """The hub of a lab, at the first address of ``subnet``.

    With a ``namespace`` the bridge is in the network namespace ``burstd-<name>.<namespace>`` and the machine's own
    network is not touched, so labs may share a subnet. With None it is on the machine, which then reaches every
    host: for a trial on a real head node. Everything made here is found again by ``burstd-<name>.`` and by a bridge
    name that follows from the lab's.
    """

    name: str
    subnet: str = "10.77.0.0/16"
    namespace: str | None = "hub"

    def __post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise NetworkFailed(f"{self.name!r} is no name for a lab", "use small letters, digits and hyphens")

    @property
    def _prefix(self) -> str:
        return f"burstd-{self.name}."

    @property
    def bridge(self) -> str:
        """The bridge's name, the same each time for a lab of this name."""
        return f"bd{_short(self.name, 5)}br"

    @property
    def hub(self) -> str | None:
        """The hub's namespace, None for the machine's own."""
        return None if self.namespace is None else self._prefix + self.namespace

    @property
    def gateway(self) -> str:
        """The hub's own address."""
        return str(next(ipaddress.ip_network(self.subnet).hosts()))

    @property
    def prefix_length(self) -> int:
        """Of the subnet, 16 in 10.77.0.0/16."""
        return ipaddress.ip_network(self.subnet).prefixlen

    def enter(self) -> list[str]:
        """The words to put before a command that is to run on the hub's network."""
        return [] if self.hub is None else [tool_path("nsenter"), f"--net={_NETNS / self.hub}", "--"]

    def host_namespace(self, host: str) -> str:
        """The network namespace of a host of this lab."""
        return self._prefix + host

    def path_of(self, host: str) -> Path:
        """The file that stands for a host's namespace."""
        return _NETNS / self.host_namespace(host)

    def up(self) -> None:
        """Makes the hub, if it is not there. Raises NotRoot, MissingTool, NetworkFailed."""
        need_root("making a network")
        if self.hub is not None and self.hub not in self._namespaces():
            self._ip("netns", "add", self.hub)
        if self._in_hub("-json", "link", "show", "dev", self.bridge, check=False):
            return
        address = f"{self.gateway}/{self.prefix_length}"
        # With a MAC address of its own: else it takes the lowest of its cables', and whoever knew the one before waits
        # seconds to find the hub again each time a host comes or goes.
        made = f"link add {self.bridge} address {_mac(self.gateway)} type bridge"
        up = [made, f"addr add {address} dev {self.bridge}"]
        up += ["link set lo up"] if self.hub is not None else []
        self._batch(self.hub, [*up, f"link set {self.bridge} up"])

    def attach(self, host: str, address: str) -> Path:
        """Makes a host's namespace with eth0 at ``address``, cabled to the hub; returns the namespace's file.

        The MAC address follows from the IP address: a host that takes an address over is reached at once.
        """
        if not _NAME.match(host) or host == self.namespace:
            raise NetworkFailed(f"{host!r} is no name for a host", "use small letters, digits and hyphens")
        ip = ipaddress.ip_address(address)
        if ip not in ipaddress.ip_network(self.subnet) or address == self.gateway:
            raise NetworkFailed(f"{address} is no address for a host in {self.subnet}", "choose another")
        netns, cable = self.host_namespace(host), self.cable(host)
        self._ip("netns", "add", netns)
        try:
            self._batch(
                self.hub,
                [
                    f"link add {cable} type veth peer name eth0 address {_mac(address)} netns {netns}",
                    f"link set {cable} master {self.bridge} up",
                ],
            )
            lines = ["link set lo up", f"addr add {ip}/{self.prefix_length} dev eth0", "link set eth0 up"]
            if self.hub is None:
                # slurmctld tells its nodes the address that the site's network has for it, which is not the bridge's.
                lines.append(f"route add default via {self.gateway}")
            self._batch(netns, lines)
        except BaseException:
            self.detach(host)
            raise
        return self.path_of(host)

    def detach(self, host: str) -> None:
        """Removes a host's namespace and cable; no error when they are gone already."""
        # The cable first: a namespace lives on, without its name, as long as a process or socket keeps it.
        self._in_hub("link", "del", self.cable(host), check=False)
        self._ip("netns", "del", self.host_namespace(host), check=False)

    def down(self) -> None:
        """Removes hub, cables and every namespace of this lab, whoever made them; may be repeated."""
        need_root("taking a network down")
        for namespace in self._namespaces():
            if namespace != self.hub:
                self.detach(namespace.removeprefix(self._prefix))
        if self.hub is None:
            self._ip("link", "del", self.bridge, check=False)
        else:
            self._ip("netns", "del", self.hub, check=False)
        left = self._namespaces()
        if left:
            raise NetworkFailed(f"the namespace {left[0]} could not be removed", f"ip netns del {left[0]}")

    def cable(self, host: str) -> str:
        """The hub's end of a host's cable, a port of the bridge."""
        return f"bd{_short(self.name, 5)}{_short(host, 8)}"

    def _namespaces(self) -> list[str]:
        return sorted(p.name for p in _NETNS.glob(self._prefix + "*")) if _NETNS.is_dir() else []

    def _in_hub(self, *words: str, check: bool = True) -> str:
        return self._ip(*([] if self.hub is None else ["-n", self.hub]), *words, check=check)

    def _batch(self, namespace: str | None, lines: list[str]) -> None:
        where = [] if namespace is None else ["-n", namespace]
        self._ip(*where, "-batch", "-", stdin="\n".join(lines) + "\n")

    @staticmethod
    def _ip(*words: str, check: bool = True, stdin: str | None = None) -> str:
        done = output_of(["ip", *words], stdin)
        if check and done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no reason given"])[0]
            said = (stdin or " ".join(words)).strip().replace("\n", "; ")
            raise NetworkFailed(f"ip could not do '{said}': {reason}", "take the lab down and start it again")
        return done.stdout if done.returncode == 0 else ""
