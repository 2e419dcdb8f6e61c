"""What ``[providers.NAME]`` of kind ``openshift`` may hold. No secret is here: kubeconfig and Secrets hold them."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}


def _mib(value: object) -> object:
    """Slurm's way, as everywhere in burstd: a bare number is MiB; 512M, 16G, 16Gi, 1T."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT])(?:i?B?)", value.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError("must be a number of MiB, or a number with a unit as in '512M', '16G' or '1T'")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _absolute(value: object) -> object:
    if isinstance(value, str) and not re.fullmatch(r"(/[^/:]+)+", value):
        raise ValueError("must be an absolute path, without a colon")
    return value


MiB = Annotated[int, BeforeValidator(_mib), Field(strict=True, ge=1)]
Price = Annotated[Decimal, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0)]
Word = Annotated[str, StringConstraints(min_length=1)]
PodPath = Annotated[str, BeforeValidator(_absolute)]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?$")]
"""Of a thing in Kubernetes."""
Namespace = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
Resource = Annotated[str, StringConstraints(pattern=r"^[a-z0-9.-]+/[A-Za-z0-9][A-Za-z0-9._-]*$")]
LabelValue = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")]
"""Name of a group or a size: may be the value of a label."""
GresType = Annotated[str, StringConstraints(pattern=r"^([A-Za-z_][A-Za-z0-9_.-]*)?$")]

SLURM_CONF = ("ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "JobAcctGatherType=jobacct_gather/linux")
"""The plug-ins for cgroups need rights that a pod lacks."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class GroupPrices(_Part):
    """For an hour of one GPU, one CPU, one GiB of memory."""

    gpu: Price = Decimal(0)
    cpu: Price = Decimal(0)
    memory_gib: Price = Decimal(0)


class PodSize(_Part):
    """What one machine has; its pod requests exactly that, and may use no more."""

    cpus: Annotated[int, Field(strict=True, ge=1)]
    memory: MiB
    """MiB; for all in the pod, its scratch and shared memory in memory included."""
    gpus: Annotated[int, Field(strict=True, ge=0)] = 0
    price: Price | None = None
    """Of an hour; None: from the group's prices."""


class NodeGroup(_Part):
    """Nodes of one kind, and the sizes of machines that are offered on them."""

    selector: dict[Word, str] = Field(default_factory=dict)
    """Labels that a node must have; empty: every node."""
    tolerations: tuple[dict[str, Any], ...] = ()
    """As in a pod's spec."""
    affinity: dict[str, Any] = Field(default_factory=dict)
    """As in a pod's spec."""
    gpu_resource: Resource = "nvidia.com/gpu"
    """Also a slice: ``nvidia.com/mig-1g.10gb``."""
    gres: GresType = ""
    """Type of the GPUs in slurm.conf; empty: untyped."""
    prices: GroupPrices | None = None
    autoscaled: bool = False
    """Nodes are made when pods wait for them: there may be none now."""
    sizes: Annotated[dict[LabelValue, PodSize], Field(min_length=1)]

    @model_validator(mode="after")
    def _priced(self) -> Self:
        if self.prices is None and (free := sorted(name for name, size in self.sizes.items() if size.price is None)):
            raise ValueError(f"give prices, or a price to each size; without: {', '.join(free)}")
        return self


class ScratchSettings(_Part):
    """The disk of each machine's own. It goes with the machine."""

    path: PodPath = "/var/spool/burst"
    """That of burstd's ``staging.job_dir``: jobs' data is there."""
    size: MiB = 20 * 1024
    """MiB."""
    storage_class: str | None = None
    """None: the node's own disk (emptyDir); else a claim of this class, empty: of the cluster's default class."""


class ClaimSettings(_Part):
    """How the claims of users' volumes are made."""

    storage_class: str = ""
    """Empty: the cluster's default class."""
    access_mode: Literal["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"] = "ReadWriteOnce"


class PodMount(_Part):
    """An existing PersistentVolumeClaim that every machine mounts."""

    claim: Name
    path: PodPath
    read_only: bool = False
    sub_path: str = ""


class OpenShiftSettings(BaseModel):
    """Times in seconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kubeconfig: Path | None = Field(default=None, json_schema_extra={"secret": True})
    """None: the pod's own service account where burstd runs in one, else ``~/.kube/config``."""
    context: str = ""
    """Of the kubeconfig; empty: its current one."""
    namespace: Namespace
    """Where everything is made (a project, in OpenShift's words)."""

    image: str = ""
    """Of pools whose rules name none: a reference, or ``imagestream:NAME:TAG``."""
    pull_secrets: tuple[Name, ...] = ()
    service_account: str = ""
    """For the pods; empty: the namespace's default. Its token is not mounted."""
    security: Literal["root", "restricted"] = "root"
    """``restricted``: an ordinary user, as OpenShift's restricted SCC wants it; all jobs run as that one."""
    run_as: Annotated[int, Field(strict=True, ge=1)] | None = None
    """Uid for ``restricted`` where no SCC chooses one (plain Kubernetes)."""
    key_secret: str = ""
    """Name of the Secret whose key ``munge.key`` is the cluster's key; empty: burstd hands it over (``root`` only)."""

    groups: Annotated[dict[LabelValue, NodeGroup], Field(min_length=1)]
    """What can be had; the group's name is the zone of its offers."""
    slurm_conf: tuple[Word, ...] = SLURM_CONF
    """Lines that take the place of those of the cluster's slurm.conf for slurmd in a pod."""

    shm: MiB = 1024
    """MiB of /dev/shm; of the machine's memory."""
    scratch: ScratchSettings = ScratchSettings()
    mounts: tuple[PodMount, ...] = ()
    volumes: ClaimSettings = ClaimSettings()
    labels: dict[Word, str] = Field(default_factory=dict)
    """More labels for the pods."""
    annotations: dict[Word, str] = Field(default_factory=dict)
    """More annotations for the pods."""
    network: str = ""
    """NetworkAttachmentDefinition (Multus) whose address is the machine's; empty: the pod network."""
    host_network: bool = False
    priority_class: str = ""
    runtime_class: str = ""

    grace_s: Annotated[int, Field(strict=True, ge=1)] = 120
    """What a pod has when somebody else takes it: jobs are requeued, output goes home."""
    unschedulable_s: Seconds = 30.0
    """How long a pod may find no node before that is a stockout."""
    autoscale_s: Seconds = 900.0
    """The same for groups that are autoscaled. The daemon's boot_timeout_s begins when it is over."""
    image_pull_s: Seconds = 120.0
    """How long an image may fail to come for reasons that may pass."""
    node_lost_s: Annotated[int, Field(strict=True, ge=0)] = 60
    """How long the pods of a node stay that does not answer."""
    force_after_s: Seconds = 600.0
    """After that, the end of a pod whose node does not confirm it is taken for done."""

    page: Annotated[int, Field(ge=1, le=5000)] = 100
    """Things to one page of a list: of 8 MiB at most, and a node's description may have 40 KiB."""
    relist_s: Seconds = 300.0
    """How often the pods are listed whole beside the watch; 0: always, without a watch."""
    side_by_side: Annotated[int, Field(ge=1, le=32)] = 8
    """Calls under way at a time for one launch or one end."""
    timeout_s: Annotated[float, Field(gt=0)] = 30.0
    """For the answer to one call."""
    egress_gb: Price = Decimal(0)
    """What a GB (10^9 bytes) costs that leaves the cluster for the site."""
    currency: str = "EUR"
    settle_s: Seconds = 60.0
    """How long the API server may still carry out a launch that it did not answer: its own limit for a request."""
    route_domain: str = ""
    """For Routes of notebooks: hosts are made below it; empty: the router chooses."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.run_as is not None and self.security != "restricted":
            raise ValueError("run_as is for security = 'restricted'")
        if self.network and self.host_network:
            raise ValueError("give either network or host_network")
        if own := sorted(key for key in (*self.labels, *self.annotations) if key.startswith(("burstd-", "burstd/"))):
            raise ValueError(f"these names are burstd's own: {', '.join(own)}")
        paths = [self.scratch.path, *(mount.path for mount in self.mounts)]
        if len(set(paths)) < len(paths):
            raise ValueError(f"each path can hold one volume only: {', '.join(paths)}")
        return self

    @property
    def storage_classes(self) -> dict[str, str]:
        """Those that are named, by the key that names them; empty: the default class."""
        found = {} if self.scratch.storage_class is None else {"scratch": self.scratch.storage_class}
        return found | ({"volumes": self.volumes.storage_class} if self.volumes.storage_class else {})

    def size(self, group: str, size: str) -> PodSize | None:
        """That of an offer's zone and instance type; None: the settings have it no more."""
        found = self.groups.get(group)
        return None if found is None else found.sizes.get(size)
