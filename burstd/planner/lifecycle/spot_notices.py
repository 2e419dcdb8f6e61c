"""The reason of a drained node that says that its machine is taken back. Every such reason is made and read here.

Slurm's word is the record: it outlives burstd, ``sinfo -R`` shows it, and a machine can set it by itself while burstd
is down (scripts/watch.sh writes the same words). Slurm takes the drain off when it powers a node down and leaves
the reason, so a reason counts only while the node is drained.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.plugins.provider import Notice, NoticeKind
from burstd.domain.slurm.node import Node

_NOTICE_REASON = re.compile(r"burstd: (?:(interruption)(?:, ends (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ))?|rebalance hint)$")
_SEPARATOR = "; "
_TIME = "%Y-%m-%dT%H:%M:%SZ"
INTERRUPTED = "interrupted"
"""Error of a claim whose machine was taken back, once it is given up or gone; state of a job's event for a cut run."""
TAKEN_BACK = "its machine is taken back"
"""How the reason of a claim begins that is closed, or given up, for that."""
NOT_IN_SERVICE_YET = frozenset({S.LAUNCHING, S.BOOTING, S.VALIDATING, S.READY})
"""States of claims whose machine is given up on a notice unless a job is on it all the same."""


@dataclass(frozen=True, slots=True)
class NodeNotice:
    """What a node's reason says of its machine's end. ``before``: what a person wrote, and was left in front."""

    kind: NoticeKind
    text: str
    """Without the ``burstd:`` of the reason."""
    admin_reason: str = ""

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
    kind = NoticeKind.INTERRUPTION if found[1] else NoticeKind.REBALANCE
    return NodeNotice(kind, found[0].removeprefix("burstd: "), reason[: found.start()].removesuffix(_SEPARATOR))


def notice_of_node(node: Node | None) -> NodeNotice | None:
    """The notice that a node bears; None: none."""
    return parse_reason(node.reason) if node is not None and node.drained else None


def missing_reason(node: Node, notice: Notice) -> str:
    """The reason that the node is still to bear for the notice; empty: it says so, or worse, already."""
    current = notice_of_node(node)
    if current is not None and (current.kind is NoticeKind.INTERRUPTION or notice.kind is NoticeKind.REBALANCE):
        return ""
    admin_reason = (current.admin_reason if current is not None else node.reason) if node.drained else ""
    return f"{admin_reason}{_SEPARATOR}{notice_reason(notice)}" if admin_reason else notice_reason(notice)


def notice_is_settled(notice: Notice, claim: Claim | None, node: Node | None) -> bool:
    """Whether nothing is left to be done for a notice of this claim's machine; ``node`` is as Slurm showed it."""
    if claim is None or claim.state in (S.FAILED, S.LOST, S.TERMINATING, S.GONE):
        return True
    if claim.state in NOT_IN_SERVICE_YET and (node is None or not node.up):
        return False
    # A storage node is no node of Slurm's: nobody can be told.
    return node is None or not missing_reason(node, notice)
