"""How what burstd makes bears its cluster and claim: labels, by which lists are filtered, and a description.

A label's value holds small letters, digits, ``_`` and ``-`` only: all tags stand in the description, as JSON.
https://cloud.google.com/compute/docs/labeling-resources
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from typing import Any

from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER
from burstd.domain.errors import BadRequest

_CLAIM = re.compile(r"[a-z0-9]([-a-z0-9]{0,54}[a-z0-9])?")
_PREFIX = "burstd-"
_NAME = "name"
_NAMESPACE = uuid.UUID("5d0ae8f4-9a5c-4f2b-9b57-2f1f0a4f6a53")
GoogleResource = Mapping[str, Any]


def instance_name(claim: str) -> str:
    """The name of a claim's machine, and of its boot disk. Raises BadRequest where it cannot be one."""
    if not _CLAIM.fullmatch(claim):
        raise BadRequest(f"claim {claim!r} cannot be in the name of an instance: 1 to 56 of a-z, 0-9 and '-'")
    return _PREFIX + claim


def claim_of_name(name: str) -> str:
    """The inverse; empty for another name."""
    return name.removeprefix(_PREFIX) if name.startswith(_PREFIX) else ""


def request_id(cluster: str, claim: str) -> str:
    """``requestId`` of the claim's launch, which Google repeats in its operation."""
    return str(uuid.uuid5(_NAMESPACE, f"{cluster}/{claim}"))


def labels(cluster: str, claim: str, more: Mapping[str, str]) -> dict[str, str]:
    """Of all that is made for a claim."""
    return {**more, TAG_CLUSTER: cluster, TAG_CLAIM: claim}


def description(tags: Mapping[str, str], name: str) -> str:
    """All tags, and the name by which people know the machine."""
    return json.dumps({_NAME: name, **tags}, sort_keys=True)


def tags_of(thing: GoogleResource) -> dict[str, str]:
    """All tags, without the name; where labels say something of the same, they count."""
    own = thing.get("labels") or {}
    return {key: value for key, value in _described(thing).items() if key != _NAME} | {
        key: str(own[key]) for key in (TAG_CLUSTER, TAG_CLAIM) if key in own
    }


def name_of(thing: GoogleResource) -> str:
    """The name by which people know the machine."""
    return _described(thing).get(_NAME, "")


def cluster_filter(cluster: str, label: str = TAG_CLUSTER) -> str:
    """``filter`` of lists; whose a thing is, is read from the thing itself."""
    return f'labels.{label} = "{cluster}"'


def list_fields(fields: str) -> str:
    """``fields`` of a list with these of each thing, and all that says whether it is whole."""
    return f"nextPageToken,warning/code,items({fields})"


def belongs_to_cluster(thing: GoogleResource, cluster: str, label: str = TAG_CLUSTER) -> bool:
    """Whether it bears exactly our cluster's label."""
    return bool(cluster) and (thing.get("labels") or {}).get(label) == cluster


def last_part(url: str) -> str:
    """The name at the end of a URL of Google's."""
    return url.rpartition("/")[2]


def _described(thing: GoogleResource) -> dict[str, str]:
    try:
        said = json.loads(thing.get("description") or "{}")
    except ValueError:
        return {}
    return {str(key): str(value) for key, value in said.items()} if isinstance(said, dict) else {}
