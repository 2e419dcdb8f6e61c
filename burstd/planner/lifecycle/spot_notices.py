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

_OURS = re.compile(r"burstd: (?:(interruption)(?:, ends (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ))?|rebalance hint)$")
_BETWEEN = "; "
_TIME = "%Y-%m-%dT%H:%M:%SZ"
INTERRUPTED = "interrupted"
"""Error of a claim whose machine was taken back, once it is given up or gone; state of a job's event for a cut run."""
TAKEN_BACK = "its machine is taken back"
"""How the reason of a claim begins that is closed, or given up, for that."""
NOT_A_NODE = frozenset({S.LAUNCHING, S.BOOTING, S.PROVING, S.READY})
"""States of claims whose machine is given up on a notice unless a job is on it all the same."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a node's reason says of its machine's end. ``before``: what a person wrote, and was left in front."""

    kind: NoticeKind
    words: str
    """Without the ``burstd:`` of the reason."""
    before: str = ""

    @property
    def timed(self) -> bool:
        """Whether it says when the machine ends."""
        return ", ends " in self.words


def words(notice: Notice) -> str:
    """The reason for a node on whose machine this notice came."""
    if notice.kind is NoticeKind.REBALANCE:
        return "burstd: rebalance hint"
    if notice.deadline is None:
        return "burstd: interruption"
    return f"burstd: interruption, ends {datetime.fromtimestamp(notice.deadline, UTC).strftime(_TIME)}"


def read(reason: str) -> Told | None:
    """What a reason says; None: it is no notice."""
    found = _OURS.search(reason)
    if found is None:
        return None
    kind = NoticeKind.INTERRUPTION if found[1] else NoticeKind.REBALANCE
    return Told(kind, found[0].removeprefix("burstd: "), reason[: found.start()].removesuffix(_BETWEEN))


def told_of(node: Node | None) -> Told | None:
    """The notice that a node bears; None: none."""
    return read(node.reason) if node is not None and node.drained else None


def to_write(node: Node, notice: Notice) -> str:
    """The reason that the node is still to bear for the notice; empty: it says so, or worse, already."""
    told = told_of(node)
    if told is not None and (told.kind is NoticeKind.INTERRUPTION or notice.kind is NoticeKind.REBALANCE):
        return ""
    person = (told.before if told is not None else node.reason) if node.drained else ""
    return f"{person}{_BETWEEN}{words(notice)}" if person else words(notice)


def settled(notice: Notice, claim: Claim | None, node: Node | None) -> bool:
    """Whether nothing is left to be done for a notice of this claim's machine; ``node`` is as Slurm showed it."""
    if claim is None or claim.state in (S.FAILED, S.LOST, S.TERMINATING, S.GONE):
        return True
    if claim.state in NOT_A_NODE and (node is None or not node.up):
        return False
    # A storage node is no node of Slurm's: nobody can be told.
    return node is None or not to_write(node, notice)
