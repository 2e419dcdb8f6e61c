"""Reads ``scontrol show node``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable
from burstd.domain.slurm.node import Node
from burstd.slurm.commands.parsing import (
    parse_count,
    parse_fields,
    parse_mebibytes,
    parse_node_gres,
    parse_shared_gpus,
    parse_timestamp,
    split_records,
    text_or_empty,
)
from burstd.slurm.commands.run import SlurmCommands
from burstd.slurm.hostlist import compress

SHOW_NODES = ("scontrol", "--all", "--oneliner", "--detail", "show", "node")
"""Detailed, because only then GresUsed is told; all, because of hidden partitions."""
LIST_NODE_NAMES = ("sinfo", "--all", "--noheader", "--Node")
_NAMES_ONLY = {"SINFO_FORMAT": "%N"}
_IMITATES_OTHERS = (
    "what its slurmd reports of itself (Arch, Version, OS) imitates other nodes in 'scontrol show node': "
    "its slurmd is not Slurm's; power that node down"
)

_SHOWN = 100
_STATE_SUFFIXES = "*~#!%$@^+-"
# Names that some version or command uses for the same thing.
_STATE_ALIASES = {
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
    text: str, translate: Callable[[float], float], cached: dict[str, Node] | None = None
) -> tuple[Node, ...]:
    """The output of COMMAND, with SLURM_TIME_FORMAT=%s. Raises SchedulerUnavailable where a node has two records.

    ``cached``: the nodes of the last call by their text, which need not be read again; left with those of this call.
    """
    before = cached or {}
    now = {
        block: before.get(block) or _node_or_unreadable(_fields(block), translate)
        for block in split_records(text, "NodeName")
    }
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
    if cached is not None:
        cached.clear()
        cached.update(now)
    return found


class NodeReader:
    """Reads all nodes, whatever a node's slurmd says of itself.

    Ordinarily that is one command. Where its output holds a node twice, or one that sinfo does not know, each node that
    imitates others is found by asking for fewer at a time; it then is asked for alone, at every look.
    """

    def __init__(self, commands: SlurmCommands, translate: Callable[[float], float]) -> None:
        self._commands = commands
        self._translate = translate
        self._listed_names: frozenset[str] = frozenset()
        """Names that are Slurm's own, as far as was found out."""
        self._imitators: frozenset[str] = frozenset()
        self._cache: dict[str, Node] = {}

    def read_all(self) -> Sequence[Node]:
        """Raises SchedulerUnavailable, SchedulerRefused."""
        text = self._commands(*SHOW_NODES)
        names = _names(text)
        if len(names) > len(set(names)) or not self._listed_names.issuperset(names):
            listed = self._commands(*LIST_NODE_NAMES, environment=_NAMES_ONLY).split()
            if len(names) > len(set(names)) or not set(listed).issuperset(names):
                found = self._read_with_imitators(set(listed))
                self._imitators = frozenset(node.name for node in found if node.unreliable_because == _IMITATES_OTHERS)
                if self._imitators:
                    return found
            # What sinfo does not know, and nobody imitates, is in no partition.
            self._listed_names = frozenset((*listed, *names))
        return parse_nodes(text, self._translate, self._cache)

    def read_named(self, names: Collection[str]) -> list[Node]:
        """Those of these nodes that are there; what imitates others has ``doubt``. Raises SchedulerUnavailable."""
        if not names:
            return []
        try:
            text = self._commands(*SHOW_NODES, compress(names))
        except SchedulerRefused:
            # One of them is gone.
            return self._read_in_halves(names) if len(names) > 1 else []
        if sorted(_names(text)) == sorted(names):
            return list(parse_nodes(text, self._translate))
        if len(names) > 1:
            return self._read_in_halves(names)
        # All of it is this node's: what slurmctld prints itself stands behind what slurmd says.
        (name,) = names
        return [
            replace(_node_or_unreadable(_fields(text), self._translate), name=name, unreliable_because=_IMITATES_OTHERS)
        ]

    def _read_with_imitators(self, names: AbstractSet[str]) -> list[Node]:
        separate = [node for name in sorted(names & self._imitators) for node in self.read_named([name])]
        return sorted([*separate, *self.read_named(names - self._imitators)], key=lambda node: node.name)

    def _read_in_halves(self, names: Collection[str]) -> list[Node]:
        ordered = sorted(names)
        middle = len(ordered) // 2
        return self.read_named(ordered[:middle]) + self.read_named(ordered[middle:])


def _names(text: str) -> list[str]:
    """Of its records, in their order."""
    return [block.removeprefix("NodeName=").partition(" ")[0].strip() for block in split_records(text, "NodeName")]


def _fields(block: str) -> dict[str, str]:
    """The values of one record.

    A node's slurmd says what stands before ``RealMemory=`` (Arch, Version, OS), so what stands there as well as behind
    counts as Slurm itself says it.
    """
    head, real_memory, tail = block.rpartition(" RealMemory=")
    return parse_fields(head) | parse_fields(real_memory + tail) if head else parse_fields(block)


def parse_state(text: str) -> tuple[str, frozenset[str]]:
    """``IDLE*+CLOUD+POWERED_DOWN``: the base state and the flags."""
    base, *rest = text.strip().split("+")
    flags = {_STATE_ALIASES.get(flag, flag) for flag in rest if flag}
    plain = base.rstrip(_STATE_SUFFIXES)
    if "*" in base[len(plain) :]:
        flags.add("NOT_RESPONDING")
    base = plain
    if base in ("DRAINED", "DRAINING"):
        flags.add("DRAIN")
        base = "IDLE" if base == "DRAINED" else "ALLOCATED"
    return base, frozenset(flags)


def unreadable_node(name: str, error: Exception) -> Node:
    """Stands for a node of which a value cannot be read."""
    return Node(name, "UNKNOWN", unreliable_because=f"what Slurm says of it cannot be read: {str(error)[:_SHOWN]}")


def _node_or_unreadable(fields: dict[str, str], translate: Callable[[float], float]) -> Node:
    try:
        return _parse_node(fields, translate)
    except (ValueError, ArithmeticError) as error:
        return unreadable_node(fields.get("NodeName", ""), error)


def _parse_node(fields: dict[str, str], translate: Callable[[float], float]) -> Node:
    def get(key: str) -> str:
        return fields.get(key, "")

    state, flags = parse_state(get("State"))
    gres = parse_node_gres(get("Gres"))
    return Node(
        name=get("NodeName"),
        state=state,
        flags=flags,
        partitions=tuple(filter(None, text_or_empty(get("Partitions")).split(","))),
        cpus=parse_count(get("CPUEfctv")) or parse_count(get("CPUTot")),
        cpus_allocated=parse_count(get("CPUAlloc")),
        memory_mib=parse_mebibytes(get("RealMemory")),
        memory_allocated_mib=parse_mebibytes(get("AllocMem")),
        gres=gres,
        gres_used=parse_node_gres(get("GresUsed")),
        shared_gpus=parse_shared_gpus(get("GresUsed"), gres),
        features=frozenset(filter(None, text_or_empty(get("ActiveFeatures")).split(","))),
        reason=_reason(text_or_empty(get("Reason"))),
        comment=text_or_empty(get("Comment")),
        extra=text_or_empty(get("Extra")),
        address=text_or_empty(get("NodeAddr")),
        hostname=text_or_empty(get("NodeHostName")),
        reservation=text_or_empty(get("ReservationName")),
        version=text_or_empty(get("Version")),
        boot_time=parse_timestamp(get("BootTime"), translate),
        slurmd_start=parse_timestamp(get("SlurmdStartTime"), translate),
        last_busy=parse_timestamp(get("LastBusyTime"), translate),
    )


def _reason(text: str) -> str:
    """Without the ``[root@2026-11-22T13:00:00]`` at its end."""
    reason, bracket, by = text.rpartition("[")
    return reason.rstrip() if bracket and by.endswith("]") and "@" in by[1:] and " " not in by else text
