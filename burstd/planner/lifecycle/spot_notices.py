"""The reason of a drained node that says that its machine is taken back, or unhealthy. All such reasons are read here.

Slurm's word is the record: it outlives burstd, ``sinfo -R`` shows it, and a machine can set it by itself while burstd
is down (scripts/watch.sh, kernel_log.sh, conditions.sh write the same words). Slurm takes the drain off when it powers
a node down and leaves the reason, so a reason counts only while the node is drained.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.health import HEALTH, Verdict
from burstd.domain.plugins.provider import Notice, NoticeKind
from burstd.domain.slurm.node import Node
from burstd.domain.snapshot import SlurmView, Snapshot

_AT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
_NOTICE_REASON = re.compile(
    rf"burstd: (?:(?P<end>interruption)(?:, ends {_AT})?|rebalance hint|"
    rf"un(?:healthy|usable), [A-Za-z0-9 ,.:/_()'?-]{{1,130}} at {_AT}, jobs (?P<jobs>are requeued|end first))$"
)
_NOTE = re.compile(r"job ([0-9]{1,10}): (Xid [0-9]{1,5} on GPU [0-9a-fA-F:.]{1,18})")
_SEPARATOR = "; "
_TIME = "%Y-%m-%dT%H:%M:%SZ"
INTERRUPTED = "interrupted"
"""Error of a claim whose machine was taken back, once it is given up or gone; state of a job's event for a cut run."""
TAKEN_BACK = "its machine is taken back"
"""How the reason of a claim begins that is closed, or given up, for that."""
UNHEALTHY = "its machine is unhealthy"
"""The same of a claim whose machine has a fault. One that is ``unusable``, for a full disk or a lost mount, may be so
through its jobs or the site: that is held against no offer."""
NOT_IN_SERVICE_YET = frozenset({S.LAUNCHING, S.BOOTING, S.VALIDATING, S.READY})
"""States of claims whose machine is given up on a notice unless a job is on it all the same."""


_WORSE = (NoticeKind.REBALANCE, Verdict.DRAIN, Verdict.REQUEUE, NoticeKind.INTERRUPTION)
"""What a node can bear, from the mildest; a worse one takes the place of another. As in scripts/watch.sh."""


@dataclass(frozen=True, slots=True)
class NodeNotice:
    """What a node's reason says of its machine's end. ``admin_reason``: a person wrote it, and it was left in front."""

    kind: NoticeKind | Verdict
    """Of a fault DRAIN or REQUEUE."""
    text: str
    """Without the ``burstd:`` of the reason."""
    admin_reason: str = ""

    @property
    def unhealthy(self) -> bool:
        """Whether it tells of a fault of the machine, and not of its cloud's will."""
        return isinstance(self.kind, Verdict)

    @property
    def ends_jobs(self) -> bool:
        """Whether what runs there begins anew elsewhere at once."""
        return self.kind in (NoticeKind.INTERRUPTION, Verdict.REQUEUE)

    @property
    def closing_reason(self) -> str:
        """Why its machine is not wanted any more."""
        if self.unhealthy:
            return f"its machine is {self.text}"
        return f"{TAKEN_BACK if self.ends_jobs else 'its machine may be taken back'}: {self.text}"

    @property
    def deadline(self) -> float | None:
        """When the machine ends, in the system's seconds since 1970; None: it does not say."""
        _, ends, time = self.text.partition(", ends ")
        try:
            return datetime.strptime(time, _TIME).replace(tzinfo=UTC).timestamp() if ends else None
        except ValueError:  # the 31st of February
            return None


def notice_reason(notice: Notice) -> str:
    """The reason for a node on whose machine this notice came."""
    if notice.kind is NoticeKind.REBALANCE:
        return "burstd: rebalance hint"
    if notice.deadline is None:
        return "burstd: interruption"
    return f"burstd: interruption, ends {datetime.fromtimestamp(notice.deadline, UTC).strftime(_TIME)}"


def parse_reason(reason: str) -> NodeNotice | None:
    """What a reason says; None: it is no notice."""
    found = _NOTICE_REASON.search(reason)
    if found is None:
        return None
    kind: NoticeKind | Verdict = NoticeKind.INTERRUPTION if found["end"] else NoticeKind.REBALANCE
    if found["jobs"]:
        kind = Verdict.REQUEUE if found["jobs"] == "are requeued" else Verdict.DRAIN
    return NodeNotice(kind, found[0].removeprefix("burstd: "), reason[: found.start()].removesuffix(_SEPARATOR))


def notice_of_node(node: Node | None) -> NodeNotice | None:
    """The notice that a node bears; None: none."""
    return parse_reason(node.reason) if node is not None and node.drained else None


def notes_of_job(nodes: Iterable[Node], number: str) -> list[str]:
    """Harmless faults that a job has met, as its nodes have noted them (scripts/watch.sh). ``number``: Slurm's own."""
    return [
        f"{found[2]} of {node.name}"
        for node in nodes
        if node.comment.startswith("burstd: job ")
        for part in node.comment.removeprefix("burstd: ").split(";")
        if (found := _NOTE.fullmatch(part)) is not None and found[1] == number
    ]


def own_node_alarms(snapshot: Snapshot) -> list[str]:
    """Nodes of the site's own that have drained themselves: nothing of burstd's changes that, or them."""
    slots = {slot for pool in snapshot.pools.values() for slot in pool.slots} | {c.slot for c in snapshot.claims}
    nodes = snapshot.slurm.nodes.values() if isinstance(snapshot.slurm, SlurmView) else ()
    found = [(node.name, notice_of_node(node)) for node in nodes if node.drained and node.name not in slots]
    return [f"the site's node {name} is {notice.text}" for name, notice in found if notice and notice.unhealthy]


def missing_reason(node: Node, notice: Notice) -> str:
    """The reason that the node is still to bear for the notice; empty: it says so, or worse, already."""
    current = notice_of_node(node)
    if current is not None and _WORSE.index(current.kind) >= _WORSE.index(notice.kind):
        return ""
    admin_reason = (current.admin_reason if current is not None else node.reason) if node.drained else ""
    return f"{admin_reason}{_SEPARATOR}{notice_reason(notice)}" if admin_reason else notice_reason(notice)


def closing_error(reason: str) -> str:
    """The error of a claim that was closed, or given up, for this reason; empty: no notice was why."""
    return INTERRUPTED if reason.startswith(TAKEN_BACK) else HEALTH if reason.startswith(UNHEALTHY) else ""


def notice_is_settled(notice: Notice, claim: Claim | None, node: Node | None) -> bool:
    """Whether nothing is left to be done for a notice of this claim's machine; ``node`` is as Slurm showed it."""
    if claim is None or claim.state in (S.FAILED, S.LOST, S.TERMINATING, S.GONE):
        return True
    if claim.state in NOT_IN_SERVICE_YET and (node is None or not node.up):
        return False
    # A storage node is no node of Slurm's: nobody can be told.
    return node is None or not missing_reason(node, notice)
