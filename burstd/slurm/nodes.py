"""Reads ``scontrol show node``."""

from __future__ import annotations

from collections.abc import Callable

from burstd.model.errors import SchedulerUnavailable
from burstd.model.node import Node
from burstd.slurm.text import blocks, fields_of, gres_of_node, instant, mebibytes, number, word

COMMAND = ("scontrol", "--all", "--oneliner", "--detail", "show", "node")
"""Detailed, because only then GresUsed is told; all, because of hidden partitions."""

_MARKS = "*~#!%$@^+-"
# Names that some version or command uses for the same thing.
_SAME = {
    "POWER_SAVING": "POWERED_DOWN",
    "POWERED_OFF": "POWERED_DOWN",
    "POWERING_OFF": "POWERING_DOWN",
    "NO_RESPOND": "NOT_RESPONDING",
    "MAINT": "MAINTENANCE",
    "RESV": "RESERVED",
    "DRAINED": "DRAIN",
    "DRAINING": "DRAIN",
}


def parse_nodes(
    text: str, translate: Callable[[float], float], known: dict[str, Node] | None = None
) -> tuple[Node, ...]:
    """The output of COMMAND, with SLURM_TIME_FORMAT=%s. Raises SchedulerUnavailable where a node has two records.

    ``known``: the nodes of the last call by their text, which need not be read again; left with those of this call.
    """
    before = known or {}
    now = {block: before.get(block) or _node(_fields(block), translate) for block in blocks(text, "NodeName")}
    found = tuple(now.values())
    names: set[str] = set()
    for previous, node in zip((None, *found), found, strict=False):
        if node.name in names:
            raise SchedulerUnavailable(
                f"'scontrol show node' has two records of node {node.name}, the second after that of "
                f"{previous.name if previous else 'none'}: what this one's slurmd reports of itself imitates a record; "
                "power that node down"
            )
        names.add(node.name)
    if known is not None:
        known.clear()
        known.update(now)
    return found


def _fields(block: str) -> dict[str, str]:
    """The values of one record.

    A node's slurmd says what stands before ``RealMemory=`` (Arch, Version, OS), so what stands there as well as behind
    counts as Slurm itself says it.
    """
    head, real_memory, tail = block.rpartition(" RealMemory=")
    return fields_of(head) | fields_of(real_memory + tail) if head else fields_of(block)


def parse_state(text: str) -> tuple[str, frozenset[str]]:
    """``IDLE*+CLOUD+POWERED_DOWN``: the base state and the flags."""
    base, *rest = text.strip().split("+")
    flags = {_SAME.get(flag, flag) for flag in rest if flag}
    plain = base.rstrip(_MARKS)
    if "*" in base[len(plain) :]:
        flags.add("NOT_RESPONDING")
    base = plain
    if base in ("DRAINED", "DRAINING"):
        flags.add("DRAIN")
        base = "IDLE" if base == "DRAINED" else "ALLOCATED"
    return base, frozenset(flags)


def _node(fields: dict[str, str], translate: Callable[[float], float]) -> Node:
    def get(key: str) -> str:
        return fields.get(key, "")

    state, flags = parse_state(get("State"))
    return Node(
        name=get("NodeName"),
        state=state,
        flags=flags,
        partitions=tuple(filter(None, word(get("Partitions")).split(","))),
        cpus=number(get("CPUEfctv")) or number(get("CPUTot")),
        cpus_allocated=number(get("CPUAlloc")),
        memory_mib=mebibytes(get("RealMemory")),
        memory_allocated_mib=mebibytes(get("AllocMem")),
        gres=gres_of_node(get("Gres")),
        gres_used=gres_of_node(get("GresUsed")),
        features=frozenset(filter(None, word(get("ActiveFeatures")).split(","))),
        reason=_reason(word(get("Reason"))),
        address=word(get("NodeAddr")),
        hostname=word(get("NodeHostName")),
        reservation=word(get("ReservationName")),
        version=word(get("Version")),
        boot_time=instant(get("BootTime"), translate),
        slurmd_start=instant(get("SlurmdStartTime"), translate),
        last_busy=instant(get("LastBusyTime"), translate),
    )


def _reason(text: str) -> str:
    """Without the ``[root@2026-11-22T13:00:00]`` at its end."""
    reason, bracket, by = text.rpartition("[")
    return reason.rstrip() if bracket and by.endswith("]") and "@" in by[1:] and " " not in by else text
