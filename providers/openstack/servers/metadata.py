"""How what burstd makes bears its cluster's and its claim's name.

Servers and volumes have metadata; ports and floating IPs have a description, which Neutron gives without an extension
of its own; server groups have a name only. Whose a thing is, is always read from the thing itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER

_GROUP = "burstd"
_LONGEST_NAME = 255


class ResourceOwner(NamedTuple):
    """Whose a thing is. ``claim`` is empty where it is of no claim in particular."""

    cluster: str
    claim: str


def owner_description(cluster: str, claim: str) -> str:
    """For ports and floating IPs."""
    return f"{TAG_CLUSTER}={cluster} {TAG_CLAIM}={claim}"


def parse_description(text: str | None) -> ResourceOwner | None:
    """What a description says; None: it is not exactly one of ours."""
    words = (text or "").split(" ")
    if len(words) != 2:
        return None
    (first, _, cluster), (second, _, claim) = (word.partition("=") for word in words)
    if (first, second) != (TAG_CLUSTER, TAG_CLAIM) or not cluster:
        return None
    return ResourceOwner(cluster, claim)


def server_tag(cluster: str) -> str:
    """The server's tag, for people: ``openstack server list --tags``. Nothing is decided by it."""
    return f"{TAG_CLUSTER}={cluster}"


def parse_metadata(metadata: Mapping[str, Any] | None) -> ResourceOwner | None:
    """What the metadata of a server or volume say; None: they name no cluster."""
    said = metadata or {}
    cluster = said.get(TAG_CLUSTER, "")
    return ResourceOwner(str(cluster), str(said.get(TAG_CLAIM) or "")) if cluster else None


class ServerGroupOwner(NamedTuple):
    """What the name of a server group says. ``made`` in seconds since 1970."""

    cluster: str
    made: int
    gang: str


def group_name(cluster: str, gang: str, made: float) -> str:
    """For the server group of a gang. Raises ValueError where Nova would not take it."""
    name = f"{_GROUP}/{cluster}/{int(made)}/{gang}"
    if len(name) > _LONGEST_NAME:
        raise ValueError(f"the server group's name would have {len(name)} characters, Nova takes {_LONGEST_NAME}")
    return name


def parse_group_name(name: str) -> ServerGroupOwner | None:
    """What a server group's name says; None: it is not one of ours."""
    words = name.split("/", 3)
    if len(words) != 4 or words[0] != _GROUP or not words[1] or not words[2].isdecimal() or not words[3]:
        return None
    return ServerGroupOwner(words[1], int(words[2]), words[3])


def belongs_to_cluster(owner: ResourceOwner | ServerGroupOwner | None, cluster: str) -> bool:
    """Whether it is exactly our cluster's."""
    return owner is not None and owner.cluster == cluster
