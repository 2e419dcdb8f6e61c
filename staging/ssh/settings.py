"""Settings of the ssh store: where its storage node is, or how burstd gets one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from burstd.domain.cloud.offer import OfferRule
from burstd.domain.storage_node import StorageNodeSpec
from burstd.transfer.protocol.ssh_program import CIPHERS
from staging.roots import AbsolutePath

_WORDS = r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$"


class StorageNodeLaunch(BaseModel):
    """One entry of ``launch``: which offers of one provider the node may be. Patterns as in the shell."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    provider: str
    instance_types: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    markets: Annotated[tuple[Literal["on-demand", "spot"], ...], Field(min_length=1)] = ("on-demand",)
    image: str = ""


def _host(text: str) -> str:
    if text and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.:-]*", text) is None:
        raise ValueError("must be the name or the address of a host")
    return text


class SshSettings(BaseModel):
    """``[staging.stores.NAME]`` of kind ``ssh``: with ``host``, or with ``launch``. Times in seconds.

    With ``launch`` burstd starts the node at a provider when there is data to stage, and ends it when it has not been
    needed for ``idle_s``; cached input goes with it. It makes the user, the keys and the folder there itself.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: Annotated[str, AfterValidator(_host)] = ""
    launch: tuple[StorageNodeLaunch, ...] = ()
    idle_s: Annotated[float, Field(gt=0)] = 600.0
    """Of a launched node: how long it stays when no job's data needs it."""
    free_gib: Annotated[float, Field(ge=0)] = 10.0
    """Of a launched node: space that ``path`` must have; a machine with less is given back."""
    port: Annotated[int, Field(ge=1, le=65535)] = 22
    user: Annotated[str, Field(pattern=_WORDS)] = "burst"
    key_file: Path | None = Field(default=None, json_schema_extra={"secret": True})
    known_hosts_file: Path = Path("/etc/burstd/known_hosts")
    """The node's host keys, as ``ssh-keyscan`` prints them, compared with what its console says."""
    path: AbsolutePath
    """A folder there, of ``user``. It must be there; on a launched node it is made."""
    connections: Annotated[int, Field(ge=1, le=16)] = 2
    ciphers: tuple[str, ...] = CIPHERS
    python: Annotated[str, Field(pattern=r"^[A-Za-z0-9_./-]+$")] = "python3"
    """What runs Python 3.11 or newer there."""
    timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """How long nothing may move while an answer is due."""
    sync: bool = False
    """Whether a put has reached the disk there before it counts."""
    node_host: str = ""
    """The node's address as cloud nodes see it; ``host`` where it is not given."""
    node_port: int = 0
    node_key_file: Path | None = Field(default=None, json_schema_extra={"secret": True})
    """The private key that agents on nodes get, another than ``key_file``, of this store and cluster only.
    burstd writes its line into authorized_keys there: it runs the store's program for nodes, and nothing else."""

    @model_validator(mode="after")
    def _host_or_launch(self) -> Self:
        """Where the node is, or how there will be one."""
        if bool(self.host) == bool(self.launch):
            raise ValueError("needs either host, where the node is, or launch, from which offers burstd starts it")
        if self.host and self.key_file is None:
            raise ValueError("needs key_file, the private key that the node takes")
        own = {"user", "key_file", "known_hosts_file", "node_host", "node_port", "node_key_file"}
        if self.launch and (given := sorted(own & self.model_fields_set)):
            raise ValueError(f"takes no {', '.join(given)} with launch: burstd makes them for each node")
        if self.host and (given := sorted({"idle_s", "free_gib"} & self.model_fields_set)):
            raise ValueError(f"takes {', '.join(given)} with launch only")
        return self

    @property
    def node_spec(self) -> StorageNodeSpec | None:
        """What a node shall be that is launched."""
        rules = [OfferRule(at.provider, at.instance_types, at.zones, at.markets, at.image) for at in self.launch]
        free = int(self.free_gib * (1 << 30))
        return StorageNodeSpec(rules, str(self.path), free, self.python, self.idle_s) if rules else None
