"""The files of the lab's Slurm cluster: slurm.conf and its kin, per version, and the boot steps of its hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from burstd.domain.cloud.offer import Pool
from burstd.domain.project import Project
from burstd.domain.slurm.shape import Gres, Shape
from burstd.slurm.config.projects import projects_lua_line
from burstd.slurm.config.render import (
    SlurmConfOptions,
    brokered_lua_line,
    gres_conf_lines,
    slurm_conf_fragment,
    workdir_lua_line,
)

VERSIONS = {"bookworm": (22, 5, 8), "trixie": (24, 11, 5), "forky": (26, 5, 5)}
"""The Slurm of each Debian release, as far as it decides how slurm.conf is written."""
USERS = {"ada": 3001, "bob": 3002}
STATE = "/var/lib/slurm/slurmctld"
_CONFIG = Path(__file__).parents[2] / "config" / "slurm"

_BASE = {
    "ClusterName": "lab",
    "SlurmctldHost": "head({head})",
    "SlurmUser": "slurm",
    "AuthType": "auth/munge",
    "StateSaveLocation": STATE,
    "SlurmdSpoolDir": "/var/lib/slurm/slurmd",
    "SlurmctldPidFile": "/run/slurmctld/slurmctld.pid",
    "SlurmdPidFile": "/run/slurmd.pid",
    "SlurmctldLogFile": "/var/log/slurm/slurmctld.log",
    "SlurmdLogFile": "/var/log/slurm/slurmd.log",
    "ProctrackType": "proctrack/linuxproc",
    "TaskPlugin": "task/none",
    "MpiDefault": "none",
    "JobAcctGatherType": "jobacct_gather/none",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_CPU_Memory",
    "SlurmctldParameters": "enable_configless",
    "SlurmdParameters": "config_overrides",
    "Licenses": "solver:1",
    # On a busy machine a job's end takes more than the minute after which Slurm drains its node.
    "UnkillableStepTimeout": "600",
}


def burst_pool(slots: int = 8, gpus: int = 4, name: str = "gpu", prefix: str = "cl") -> Pool:
    """A pool of slots with 2 CPUs, 1000 MiB and fake GPUs each, in the partition ``burst``."""
    gres = (Gres("gpu", "v100", gpus),) if gpus else ()
    names = tuple(f"{prefix}{i}" for i in range(1, slots + 1))
    return Pool(name, names, ("burst",), Shape(2, 1000, gres, frozenset({"cloud"})))


def slurm_conf(
    release: str,
    pools: Sequence[Pool],
    onprem: Sequence[tuple[str, str]],
    head: str,
    programs: str,
    extra: str,
    workdir_partitions: tuple[str, ...] = (),
    onprem_gpus: int = 0,
    projects: Sequence[Project] = (),
    onprem_shards: int = 0,
) -> str:
    """A whole slurm.conf: the lab's own settings, and burstd's fragment merged into them as an administrator would.

    ``onprem`` are pairs of node name and address, ``head`` is the head's address, ``extra`` more lines of the same
    kind: a setting that is there already is replaced. A node with ``onprem_gpus`` has as many CPUs, or with
    ``onprem_shards`` of each GPU as many as shards. The partitions of ``projects`` are still to be added.
    """
    options = SlurmConfOptions(
        VERSIONS[release], programs, onprem_partitions=("onprem",), resume_timeout_s=60, suspend_timeout_s=5,
        workdir_partitions=workdir_partitions, projects=tuple(projects),
    )  # fmt: skip
    values = {key: value.format(head=head) for key, value in _BASE.items()}
    shards = onprem_gpus * onprem_shards
    shape = f"CPUs={max(2, onprem_gpus, shards)} RealMemory=1000" + f" Gres=gpu:{onprem_gpus}" * bool(onprem_gpus)
    shape += f",shard:{shards}" * bool(shards)
    objects = [f"NodeName={name} NodeAddr={address} {shape}" for name, address in onprem]
    names = ",".join(name for name, _ in onprem)
    objects.append(f"PartitionName=onprem Nodes={names} Default=YES MaxTime=INFINITE State=UP")
    for text, replace in ((slurm_conf_fragment(pools, options), False), (extra, True)):
        for line in text.splitlines():
            key, _, value = line.partition("=")
            if not line.strip() or line.startswith("#"):
                continue
            if key in ("NodeName", "PartitionName"):
                objects.append(line)
            elif key in values and not replace:
                values[key] += "," + value
            else:
                values[key] = value
    if shards and "shard" not in values.get("GresTypes", "").split(","):
        values["GresTypes"] = ",".join(filter(None, [values.get("GresTypes", "gpu"), "shard"]))
    return "\n".join([*(f"{key}={value}" for key, value in values.items()), *objects]) + "\n"


def gres_text(release: str, pools: Sequence[Pool]) -> str:
    """gres.conf; the boxes' fake GPUs are /dev/nvidia0 and so on."""
    return gres_conf_lines(pools, SlurmConfOptions(VERSIONS[release]))


def onprem_gres_text(onprem: Sequence[tuple[str, str]], gpus: int, shards: int = 0) -> str:
    """The lines of gres.conf for nodes on premises with so many GPUs each, of so many shards each."""
    lines = "".join(f"NodeName={name} Name=gpu File=/dev/nvidia[0-{gpus - 1}]\n" for name, _ in onprem if gpus)
    return lines + "".join(f"NodeName={name} Name=shard Count={gpus * shards}\n" for name, _ in onprem if shards)


def job_submit_lua(
    workdir_partitions: Sequence[str] = (),
    projects: Sequence[Project] = (),
    shared: Sequence[str] = (),
    brokered: Sequence[str] = (),
) -> str:
    """burstd's job_submit.lua with the lines that 'burstctl slurm-config' names for it."""
    text = (_CONFIG / "job_submit.lua").read_text(encoding="utf-8")
    for before, after in (
        (workdir_lua_line(()), workdir_lua_line(workdir_partitions)),
        (brokered_lua_line(()), brokered_lua_line(brokered)),
        (projects_lua_line(()), projects_lua_line(projects, shared)),
    ):
        assert before in text.splitlines()
        text = text.replace(before, after)
    return text


def cli_filter_lua(partitions: Sequence[str]) -> str:
    """burstd's cli_filter.lua for jobs that name these partitions."""
    text = (_CONFIG / "cli_filter.lua").read_text(encoding="utf-8")
    names = ", ".join(f'"{name}"' for name in partitions)
    for before, after in (
        ("local partitions = {}", f"local partitions = {{ {names} }}"),
        # A busy machine may take longer than a user likes to wait.
        ("local seconds, test_seconds = 2, 5", "local seconds, test_seconds = 60, 60"),
    ):
        assert before in text.splitlines()
        text = text.replace(before, after)
    return text


def cgroup_text(release: str) -> str | None:
    """cgroup.conf: boxes have no cgroups of their own. Slurm 22.05 knows no such switch, and does not need it."""
    return None if release == "bookworm" else "CgroupPlugin=disabled\n"


def hosts(addresses: Sequence[tuple[str, str]]) -> str:
    """/etc/hosts."""
    return "127.0.0.1 localhost\n" + "".join(f"{address} {name}\n" for name, address in addresses)


def prepare(users: Mapping[str, int] = USERS) -> list[str]:
    """Users (name to uid) and folders that packages or an administrator would have made."""
    accounts = "; ".join(f"useradd -m -s /bin/bash -u {uid} {name}" for name, uid in users.items())
    folders = "mkdir -p /run/munge /run/slurmctld /var/log/slurm /var/lib/slurm/slurmd /var/lib/slurm/slurmctld"
    folders += " /run/burstd /var/spool/burstd/power"
    owners = "chown munge: /run/munge; chown -R slurm: /run/slurmctld /var/log/slurm /var/lib/slurm/slurmctld"
    owners += " /run/burstd /var/spool/burstd"
    return ["sh", "-c", f"{accounts}; {folders}; {owners}"]


MUNGED = ["setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged"]


def slurmd(node: str) -> list[str]:
    """slurmd that knows nothing but where slurmctld is. ``-b``: boxes share a kernel that booted long ago."""
    return ["slurmd", "--conf-server", "head", "-N", node, "-b"]
