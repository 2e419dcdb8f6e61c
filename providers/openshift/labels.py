"""How what burstd makes bears its cluster's and its claim's name: labels, which Kubernetes can select by.

Whose a thing is, is always read from the thing itself.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER
from burstd.domain.cloud.volume import TAG_VOLUME, TAG_VOLUME_CLUSTER
from burstd.domain.errors import BadRequest

GROUP = "burstd-group"
SIZE = "burstd-size"
TAGS = "burstd/tags"
"""Annotation: all tags of the request, as JSON; a label's value may not hold everything."""
_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_TAGS = (TAG_CLUSTER, TAG_CLAIM, TAG_VOLUME_CLUSTER, TAG_VOLUME)
"""Those that are labels."""
KubeObject = Mapping[str, Any]


def claim_labels(cluster: str, claim: str, group: str = "", size: str = "") -> dict[str, str]:
    """For all that is made for a claim; ``group`` and ``size`` for its pod. Raises BadRequest where one cannot be."""
    said = {TAG_CLUSTER: cluster, TAG_CLAIM: claim}
    return _checked(said | {key: value for key, value in ((GROUP, group), (SIZE, size)) if value})


def volume_labels(cluster: str, volume_id: str) -> dict[str, str]:
    """For a user's volume, which is of no claim of burstd's. Raises BadRequest where one cannot be."""
    return _checked({TAG_VOLUME_CLUSTER: cluster, TAG_VOLUME: volume_id})


def _checked(said: dict[str, str]) -> dict[str, str]:
    for key, value in said.items():
        if not value or not _VALUE.fullmatch(value):
            raise BadRequest(f"{value!r} cannot be the value of the label {key}: 1 to 63 of A-Z a-z 0-9 . _ -")
    return said


def claim_selector(cluster: str) -> str:
    """For lists and watches: what is of a claim of our cluster's."""
    return f"{TAG_CLUSTER}={cluster},{TAG_CLAIM}"


def belongs_to_cluster(thing: KubeObject, cluster: str) -> bool:
    """Whether it is exactly our cluster's, and of a claim."""
    said = _labels(thing)
    return bool(cluster) and said.get(TAG_CLUSTER) == cluster and bool(said.get(TAG_CLAIM))


def claim_of(thing: KubeObject) -> str:
    """Empty: of none."""
    return str(_labels(thing).get(TAG_CLAIM, ""))


def group_of(thing: KubeObject) -> str:
    """The group of nodes that a pod is for."""
    return str(_labels(thing).get(GROUP, ""))


def size_of(thing: KubeObject) -> str:
    """The size that a pod has."""
    return str(_labels(thing).get(SIZE, ""))


def tags_of(thing: KubeObject) -> dict[str, str]:
    """All tags, with those that are labels: a label counts, whatever the annotation says."""
    try:
        said = json.loads((thing.get("metadata", {}).get("annotations") or {}).get(TAGS, "{}"))
    except ValueError:
        said = {}
    known = {str(key): str(value) for key, value in said.items()} if isinstance(said, dict) else {}
    own = _labels(thing)
    return known | {key: str(own[key]) for key in _TAGS if key in own}


def name_of(thing: KubeObject) -> str:
    """Unique among those of its kind in the namespace, at one time."""
    return str(thing["metadata"]["name"])


def uid_of(thing: KubeObject) -> str:
    """Unique for ever: a second thing of the same name has another."""
    return str(thing["metadata"]["uid"])


def _labels(thing: KubeObject) -> Mapping[str, Any]:
    return thing.get("metadata", {}).get("labels") or {}
