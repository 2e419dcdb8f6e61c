"""Limits of QOS and associations that slurmctld enforces for a user's jobs: ``scontrol show assoc_mgr``.

burstd counts none of them: Slurm holds a job back at them whatever nodes are free. slurmctld shows a QOS' limits of a
user or account only where some of their jobs are known to it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from burstd.slurm.commands.parsing import parse_fields, split_records
from burstd.slurm.commands.run import SlurmCommands

_LIMIT = re.compile(r"\b((?:Grp|Max)\w+)=([^\s{}]*)")
_VALUE = re.compile(r"([0-9][0-9.]*)(?:\(([0-9.]*)\))?")
_ENFORCED = frozenset({"limits", "safe"})
_KEPT_AT_SUBMISSION = ("Accrue", "SubmitJobs")
"""Part of the names of limits that keep no job waiting."""


def read_limits(
    commands: SlurmCommands, enforced: str, user: str, uid: int, account: str, qos: Collection[str]
) -> list[str]:
    """Those in force for a user's jobs in an account with some QOS: ``MaxJobs=2 of ada in lhc (1 used)``.

    ``enforced``: AccountingStorageEnforce. Raises SchedulerUnavailable, SchedulerRefused.
    """
    if _ENFORCED.isdisjoint(enforced.split(",")):
        return []
    text = commands("scontrol", "--oneliner", "show", "assoc_mgr", f"users={user}", "flags=assoc,qos")
    return parse_limits(text, user, uid, account, qos)


def parse_limits(text: str, user: str, uid: int, account: str, qos: Collection[str]) -> list[str]:
    """Of its output: those of the association, its account and that one's parents, then those of QOS."""
    associations, _, records = text.partition("QOS Records")
    own: list[tuple[str, str]] = []
    accounts: dict[str, tuple[str, str]] = {}
    for block in split_records(associations, "ClusterName"):
        fields = parse_fields(block)
        if not fields.get("UserName"):
            accounts[fields.get("Account", "")] = block, _name(fields.get("ParentAccount", ""))
        elif fields.get("Account") == account and _name(fields["UserName"]) == user:
            own.append((f"{user} in {account}", block))
    while account in accounts:
        block, parent = accounts.pop(account)
        own.append((account, block))
        account = parent
    return [limit for owner, block in (*own, *_of_qos(records, uid, own, qos)) for limit in _limits(block, owner)]


def _of_qos(
    records: str, uid: int, associations: Collection[tuple[str, str]], qos: Collection[str]
) -> Iterator[tuple[str, str]]:
    groups = "|".join([rf"(?:\w+\()?{uid}\)?", *(re.escape(name) for name, _ in associations)])
    for block in split_records(records, "QOS"):
        name = _name(block.partition("=")[2].split(" ", 1)[0])
        if name in qos:
            whole, _, parts = block.partition(" Account Limits=")
            yield f"QOS {name}", whole
            for found in re.finditer(rf"(?:^|\s)(?:{groups})={{([^{{}}]*)}}", parts):
                yield f"QOS {name}", found[1]


def _limits(block: str, owner: str) -> Iterator[str]:
    for key, values in _LIMIT.findall(block):
        if any(part in key for part in _KEPT_AT_SUBMISSION):
            continue
        for value in values.split(","):
            tres, _, amount = value.rpartition("=")
            if found := _VALUE.fullmatch(amount):
                used = f" ({found[2]} used)" if found[2] else ""
                yield f"{key}={f'{tres}=' if tres else ''}{found[1]} of {owner}{used}"


def _name(text: str) -> str:
    """``lhc`` of ``lhc(15)``."""
    return text.partition("(")[0]
