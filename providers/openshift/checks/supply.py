"""Whether the cluster has nodes for the groups, whether sizes fit them and the namespace's limits, and what is free.

What the API server would say to a pod of ours it tells of itself: the pod is sent with ``dryRun``, so admitted or
refused, and not made. https://kubernetes.io/docs/reference/using-api/api-concepts/#dry-run
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER
from burstd.domain.errors import BadRequest, NotAllowed, QuotaExceeded
from burstd.domain.plugins.provider import LaunchRequest
from providers.checks import Verdict, bad, first_few, good, judge_room, unclear
from providers.openshift.catalog import nodes
from providers.openshift.catalog.limits import QuotaLine, quota_demand
from providers.openshift.catalog.nodes import ClusterNode
from providers.openshift.catalog.quotas import FreeCapacity, OpenShiftQuotas
from providers.openshift.checks.namespace import ROLE, SCC, CheckedNamespace, error_verdict
from providers.openshift.client.quantities import format_quantity
from providers.openshift.pods import manifest
from providers.openshift.settings import NodeGroup


def judge_supply(at: CheckedNamespace) -> Iterator[Verdict]:
    """Groups, sizes, quotas. What burstd may not see was said with its rights."""
    there = at.catalog.cluster_nodes()
    capacity = OpenShiftQuotas(at.settings, at.catalog).free_capacity()
    never = at.catalog.impossible_sizes()
    lines = at.catalog.limits().quotas
    for zone, group in at.settings.groups.items():
        yield replace(_group(group, there, capacity), subject=f"group {zone}")
        for name in group.sizes:
            if (zone, name) in never:
                yield bad(
                    f"not offered: {never[zone, name]}",
                    "make it smaller or take it out, or have what keeps it out changed: 'oc describe nodes', "
                    "'oc describe quota', 'oc describe limits'", f"size {name} of group {zone}",
                )  # fmt: skip
    for line in lines:
        yield from _quota(at, line)


def _group(group: NodeGroup, there: Sequence[ClusterNode] | None, capacity: FreeCapacity | None) -> Verdict:
    """Its nodes, and how many machines of each size have room at this moment."""
    sizes = first_few(list(group.sizes))
    if there is None:
        return good(f"sizes {sizes}, as the settings have them; burstd may not see the nodes")
    own = [node for node in there if nodes.matches_group(node, group)]
    if not own and group.autoscaled:
        return good(f"sizes {sizes}; no node now, and nodes come when pods wait")
    if not own:
        return bad(
            f"none of the cluster's {len(there)} nodes has the labels of selector and affinity",
            "compare them with 'oc get nodes --show-labels', or set autoscaled = true where nodes come when pods wait",
        )
    text = _nodes(group, own)
    if not nodes.usable_nodes(own, group):
        text = f"{text}: no pod may go there now"
        if any(nodes.untolerated_taints(node, group) for node in own):
            return bad(text, "set tolerations to what 'oc describe node' has as taints")
        return unclear(text, "oc describe node")
    if capacity is None:
        return good(text)
    free = {
        name: capacity.machines_now(group, nodes.machine_requests(group, size)) for name, size in group.sizes.items()
    }
    text += f"; free now: {', '.join(f'{number} {name}' for name, number in free.items())}"
    if any(free.values()) or group.autoscaled:
        return good(text)
    return unclear(text, "all is taken now: 'oc describe node' shows by what, or the sizes are too large")


def _nodes(group: NodeGroup, own: Sequence[ClusterNode]) -> str:
    """How many, of which kind, and what is wrong with some."""
    products = sorted({node.labels.get(f"{group.gpu_resource}.product", "") for node in own} - {""})
    wrong = Counter(node.problem or nodes.untolerated_taints(node, group) for node in own)
    wrong.pop("", None)
    said = [f"{number} {why}" for why, number in sorted(wrong.items())]
    return ", ".join([f"{len(own)} node{'s' if len(own) > 1 else ''}", *products, *said])


def _quota(at: CheckedNamespace, line: QuotaLine) -> Iterator[Verdict]:
    """For how many of the smallest and the largest machine it has room. Those for other things are not spoken of."""
    needs = {
        f"{name} of {zone}": wanted
        for zone, group in at.settings.groups.items()
        for name, size in group.sizes.items()
        if (wanted := quota_demand(at.settings, group, size).get(line.resource))
    }
    if needs:
        used, hard = (format_quantity(line.resource, value) for value in (line.used, line.hard))
        verdict = judge_room(
            f"{used} of {hard} in use", line.hard - line.used, line.hard, needs,
            f"ask the namespace's administrator to raise {line.resource}", "'oc get pods' shows by what",
        )  # fmt: skip
        yield replace(verdict, subject=f"quota {line.quota} {line.resource}")


def judge_admission(at: CheckedNamespace, zone: str) -> Verdict:
    """A pod of the smallest size of a group. Its image need not be there."""
    sizes, claim = at.settings.groups[zone].sizes, "check"
    size = min(sizes, key=lambda one: (sizes[one].gpus, sizes[one].cpus, sizes[one].memory))
    tags, image = {TAG_CLUSTER: at.cluster, TAG_CLAIM: claim}, (at.images or ["none"])[0]
    name = f"burstd-check-{secrets.token_hex(4)}"
    try:
        request = LaunchRequest(claim, name, at.catalog.offer_for_size(zone, size), image, "", tags)
        said = at.calls.request_json(
            "POST", at.calls.path_of("pods"), manifest.pod_manifest(at.settings, request), {"dryRun": "All"},
            what=f"make a pod of size {size}", changes=False,
        )  # fmt: skip
    except NotAllowed as error:
        text = str(error)
        if SCC in text:
            return bad(text, f"set security = 'restricted', or have {SCC} applied: oc apply -f {SCC}")
        if ROLE in text:
            return error_verdict(error, "")
        return bad(text, "ask the cluster's administrators which rule this is")
    except QuotaExceeded as error:
        return unclear(str(error), "'oc describe quota' shows what is used; wait, or ask for more")
    except BadRequest as error:
        return bad(str(error), "mend the key of the provider's table, or the limit, that it names")
    return good(f"size {size}: {_admitted(said)}")


def _admitted(pod: dict[str, Any]) -> str:
    """By which constraints, and as whom."""
    # OpenShift says by this annotation what a pod was admitted by.
    chosen = (pod["metadata"].get("annotations") or {}).get("openshift.io/scc", "")
    contexts = [pod["spec"].get("securityContext"), *(one.get("securityContext") for one in pod["spec"]["containers"])]
    uids = [context["runAsUser"] for context in contexts if context and context.get("runAsUser") is not None]
    summary = "admitted" + (f" under SCC {chosen}" if chosen else "")
    if uids and uids[-1]:
        summary += f", as uid {uids[-1]}: slurmctld's SlurmUser must have this one"
    return summary
