"""A whole site in boxes: a real Slurm cluster, the sandbox cloud, and burstd from the built wheel on its head node.

``with Site() as site: site.submit(...)``. Used by the demo and by the end-to-end tests.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from burstd.domain.cloud.offer import OfferRule, Pool
from burstd.domain.slurm.shape import Gres, Shape
from providers.sandbox.cloud.control import CloudServerClient, start_server, stop_server
from tests.lab.base_site import BaseSite

_PORT = 8470
_GATEWAY = "10.77.0.1"

GPU = Pool(
    "gpu",
    tuple(f"gpu{i}" for i in range(1, 9)),
    ("burst",),
    Shape(2, 1000, (Gres("gpu", "v100", 4),), frozenset({"cloud", "v100"})),
)
CPU = Pool("cpu", tuple(f"cpu{i}" for i in range(1, 5)), ("burst",), Shape(2, 1000, (), frozenset({"cloud"})))

TYPES = """
[[cloud.types]]
name = "g4.v100"
cpus = 2
memory_mib = 2048
gpu_type = "v100"
gpus = 4
price = "9.80"
spot_price = "3.10"

[[cloud.types]]
name = "c2.plain"
cpus = 2
memory_mib = 2048
price = "0.40"

[cloud.capacity.north]
"g4.v100" = 8
"c2.plain" = 8

[cloud.capacity.south]
"g4.v100" = 8
"c2.plain" = 8
"""


class Site(BaseSite):
    """One site. ``pools`` without rules take what ``TYPES`` has for their shape.

    ``cloud`` are more keys of the cloud's ``[cloud]``, ``types`` what it sells; the rest is ``BaseSite``'s.
    """

    storage_offer = '{ provider = "sandbox", instance_types = ["c2.plain"], image = "node" }'

    def __init__(
        self,
        release: str = "bookworm",
        *,
        pools: Sequence[Pool] = (GPU, CPU),
        cloud: str = "boot_seconds = 1.0",
        types: str = TYPES,
        **more: Any,
    ) -> None:
        super().__init__(release, pools=pools, **more)
        self._cloud = cloud
        self._types = types

    def start_cloud(self, layers: Sequence[Path]) -> None:
        """Starts the cloud's server."""
        state = self.cluster.state
        token = state / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_urlsafe(24), encoding="utf-8")
        listed = ", ".join(f'"{layer}"' for layer in layers)
        config = state / "cloud.toml"
        network = self.cluster.lab.network
        config.write_text(
            f'state = "{state}"\ntoken_file = "{token}"\nport = {_PORT}\n'
            f'[lab]\nname = "{network.name}"\nsubnet = "{network.subnet}"\nnamespace = "{network.namespace}"\n'
            f"[images.node]\nlayers = [{listed}]\n[cloud]\n{self._cloud}\n{self._types}",
            encoding="utf-8",
        )
        start_server(config)
        self.write("/etc/burstd/sandbox.token", token.read_text(encoding="utf-8"), 0o600)

    def stop_cloud(self) -> None:
        """Ends the cloud's server; its boxes are the lab's."""
        stop_server(self.cluster.state)

    def provider_toml(self) -> str:
        """The section of burstd.toml."""
        return (
            f'[providers.sandbox]\nkind = "sandbox"\nurl = "http://{_GATEWAY}:{_PORT}"\n'
            'token_file = "/etc/burstd/sandbox.token"\n'
        )

    def rules_of(self, pool: Pool) -> Sequence[OfferRule]:
        """The type of ``TYPES`` that has GPUs, or the one that has none."""
        return (OfferRule("sandbox", ("g4*" if pool.shape.gres else "c2*",), image="node"),)

    @property
    def cloud(self) -> CloudServerClient:
        """The lab's hand on the cloud."""
        return CloudServerClient(self.cluster.state)

    def instances(self) -> list[str]:
        """Ids of the cloud's instances that are not terminated."""
        return [i.id for i in self.cloud.instances() if i.state != "terminated"]
