"""What burstd.toml may hold. Keys that are not here are refused.

Lengths of time are in seconds, memory in MiB or with a unit. A field marked RESTART takes effect at the next start; a
field marked SECRET is the path of a file that others must not be able to read. Secrets themselves never stand here.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr

from burstd.domain.billing.rates import Rates
from burstd.domain.cloud.offer import GpuMemoryLimit, GpuTest
from burstd.domain.health import USUALLY_DIFFERENT, HealthRules, Verdict
from burstd.domain.machine_outcomes import BadPlaceRule, BadPlaces
from burstd.domain.slurm.shape import Gres
from burstd.planner.timeouts import Tuning
from burstd.settings.bill import BillSettings
from burstd.settings.faults import SettingsFault
from burstd.settings.fields import (
    RESTART,
    SECRET,
    AbsolutePath,
    Count,
    ModuleName,
    Name,
    NodePath,
    Seconds,
    Section,
    Size,
    matching,
)
from burstd.settings.frameworks import FrameworkName, FrameworkSettings
from burstd.settings.idle_gpus import IdleGpuSettings, RulePartition
from burstd.settings.metrics import MetricsSettings
from burstd.settings.mounts import MountSettings
from burstd.settings.notify import NotifySettings
from burstd.settings.projects import FairShareSettings, PartitionName, ProjectName, ProjectSettings
from burstd.settings.rates import RateSettings
from burstd.settings.sampler import SamplerSettings
from burstd.settings.site import SiteSettings
from burstd.settings.staging import StagingSettings
from burstd.settings.toml_source import TomlSource
from burstd.settings.volumes import VolumeSettings
from burstd.settings.web import WebSettings

_DEFAULT = Tuning()
_UNITS = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024 * 1024}
_FABRIC = r"(?!(none|fabric)$)[a-z][a-z0-9_-]{0,30}"
_FABRIC_FAULT = (
    "must be a word that jobs ask for with -C, such as 'efa' or 'ib': a letter, then up to 30 of a-z, 0-9, '-' and "
    "'_'; 'fabric' stands for any, and a pool without one leaves the key out"
)
_SERVERS = r"(|[^\s:,]+(:[0-9]+)?(,[^\s:,]+(:[0-9]+)?)*)"
_GRES = re.compile(r"([a-z_][\w-]*)(?::([A-Za-z_][\w.-]*|[0-9]+g\.[\w.+-]+))?(?::([0-9]+))?")
_MIG = re.compile(r"([0-9]+g\.[0-9]+gb(?:\+[a-z.+]+)?):([1-9][0-9]?)")


def _memory(value: object) -> object:
    """Slurm's way: a bare number is MiB; 512M, 16G, 1T."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT])(?:i?B)?", value.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError("must be a number of MiB, or a number with a unit as in '512M', '16G' or '1T'")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _gres(value: object) -> object:
    """Slurm's way: ``gpu:v100:4``, several with commas between, or a list of such."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        return value
    found = []
    for text in value:
        match = _GRES.fullmatch(text)
        if match is None:
            raise ValueError(f"must be as in slurm.conf, such as 'gpu:v100:4'; {text!r} is not")
        found.append(Gres(match[1], match[2] or "", int(match[3] or 1)))
    return tuple(found)


def _mig(value: object) -> object:
    """``1g.10gb:7``, several with commas between: profiles, and how many of each GPU."""
    if not isinstance(value, str):
        return value
    found = [_MIG.fullmatch(part.strip()) for part in value.split(",") if part.strip()]
    if not all(found):
        raise ValueError(f"must be profiles of MIG and how many of each GPU, such as '1g.10gb:7'; {value!r} is not")
    return tuple(Gres("gpu", match[1], int(match[2])) for match in found if match)


def _no_password(text: str) -> str:
    if re.match(r"\w+(\+\w+)?://[^/@]*:[^/@]+@", text):
        raise ValueError(
            "must not hold a password; leave it out here and put it in the file that PGPASSFILE or "
            "~/.pgpass of burstd's user names"
        )
    return text


def _command(text: str) -> str:
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"must be a command and its arguments ({error})") from None
    if not words or not text.isprintable():
        raise ValueError("must be a command and its arguments")
    return text


MemoryMib = Annotated[int, BeforeValidator(_memory), Field(strict=True, ge=0)]
GresList = Annotated[tuple[Gres, ...], BeforeValidator(_gres)]
MigProfiles = Annotated[tuple[Gres, ...], BeforeValidator(_mig)]
NonEmptyStrings = tuple[Annotated[str, Field(min_length=1)], ...]
FeatureName = Annotated[str, matching(r"[^\s,&|\[\]()]+", "must be one feature: no space, comma, & or |")]


class DaemonSettings(Section):
    """``[daemon]``: where things lie, how often burstd looks, how long it waits."""

    state_dir: AbsolutePath = Field(default=Path("/var/lib/burstd"), json_schema_extra=RESTART)
    runtime_dir: AbsolutePath = Field(default=Path("/run/burstd"), json_schema_extra=RESTART)
    spool_dir: AbsolutePath = Field(default=Path("/var/spool/burstd"), json_schema_extra=RESTART)
    database: Annotated[str, AfterValidator(_no_password)] = Field(default="", json_schema_extra=RESTART)
    standby: bool = Field(default=False, strict=True, json_schema_extra=RESTART)
    shared_dir: AbsolutePath | None = Field(default=None, json_schema_extra=RESTART)
    retention_days: Count = 400
    admin_group: str = Field(default="burstd", json_schema_extra=RESTART)
    log_format: Literal["text", "json"] = Field(default="text", json_schema_extra=RESTART)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    workers: Annotated[int, Field(strict=True, ge=1, le=64)] = Field(default=8, json_schema_extra=RESTART)
    machine_workers: Annotated[int, Field(strict=True, ge=1, le=500)] = Field(default=200, json_schema_extra=RESTART)
    tick_s: Seconds = 15.0
    poll_s: Seconds = 2.0
    cloud_poll_s: Seconds = 15.0
    boot_timeout_s: Seconds = _DEFAULT.boot_timeout_s
    validation_timeout_s: Seconds = _DEFAULT.validation_timeout_s
    gang_timeout_s: Seconds = _DEFAULT.gang_timeout_s
    orphan_grace_s: Seconds = _DEFAULT.orphan_grace_s
    slurmd_restart_s: Seconds = _DEFAULT.slurmd_restart_s
    node_down_grace_s: Seconds = _DEFAULT.node_down_grace_s
    launch_attempts: Count = _DEFAULT.launch_attempts
    power_down_retry_s: Seconds = _DEFAULT.power_down_retry_s
    spot_interruptions: Annotated[int, Field(strict=True, ge=0)] = _DEFAULT.spot_interruptions


def _auto(value: object) -> object:
    return None if value == "auto" else value


class SlurmSettings(Section):
    """``[slurm]``: how to speak with slurmctld, and what the lines for slurm.conf are made from."""

    interface: Literal["auto", "commands", "pyslurm"] = Field(default="auto", json_schema_extra=RESTART)
    bin_dir: AbsolutePath | None = Field(default=None, json_schema_extra=RESTART)
    conf: AbsolutePath | None = Field(default=None, json_schema_extra=RESTART)
    gate: Annotated[str, matching(r"[A-Za-z0-9][\w.-]{0,63}", "must be a name that Slurm takes for a reservation")] = (
        Field(default=_DEFAULT.gate, json_schema_extra=RESTART)
    )
    conf_server: Annotated[str, matching(_SERVERS, "must be 'host' or 'host:port', as slurmd takes it")] = ""
    bind_depth: Annotated[int, Field(strict=True, ge=0)] = _DEFAULT.bind_depth
    bind_timeout_s: Seconds = _DEFAULT.bind_timeout_s
    comments: bool = Field(default=True, strict=True, json_schema_extra=RESTART)
    state_save_location: Annotated[AbsolutePath | None, BeforeValidator(_auto)] = Field(
        default=None, json_schema_extra=RESTART
    )
    programs: AbsolutePath = Path("/opt/burstd/bin")
    keep_partitions: tuple[PartitionName, ...] = ()
    resume_timeout_s: Count = 900
    suspend_timeout_s: Count = 30
    devices: dict[str, str] = Field(default_factory=lambda: {"gpu": "/dev/nvidia{}"})


class OfferRuleSettings(Section):
    """One entry of ``offers`` of a pool: which offers of one provider may fill it. Patterns as in the shell."""

    provider: str
    instance_types: NonEmptyStrings = ()
    zones: NonEmptyStrings = ()
    markets: Annotated[tuple[Literal["on-demand", "spot"], ...], Field(min_length=1)] = ("on-demand",)
    image: str = ""


class PoolSettings(Section):
    """``[pools.NAME]``: slots of one shape, as their NodeName line in slurm.conf has it."""

    nodes: Annotated[str, Field(min_length=1)]
    partitions: Annotated[tuple[PartitionName, ...], Field(min_length=1)]
    cpus: Count
    memory: MemoryMib
    gres: GresList = ()
    mig: MigProfiles = ()
    gpu_memory_limit: GpuMemoryLimit = "none"
    gpu_test: GpuTest | None = None
    gpu_test_limit_s: Seconds | None = None
    gpu_min_gb_s: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 0.0
    fabric: Annotated[str, matching(_FABRIC, _FABRIC_FAULT)] = ""
    fabric_test: Annotated[str, AfterValidator(_command)] = ""
    fabric_test_limit_s: Seconds = 60.0
    fabric_min_gb_s: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 0.0
    features: tuple[
        Annotated[str, matching(r"[^\s,&|\[\]()]+", "must be one feature: no space, comma, & or |")], ...
    ] = ()
    frameworks: tuple[str, ...] = ()
    cpu_jobs: bool = False
    scratch: Size | None = None
    reuse_from: NonEmptyStrings = ()
    offers: Annotated[tuple[OfferRuleSettings, ...], Field(min_length=1)]


class ProviderSettings(BaseModel):
    """``[providers.NAME]``: the kind of cloud, and the settings that this kind has (checked by ``resolve``)."""

    model_config = ConfigDict(extra="allow", frozen=True)
    kind: str

    @property
    def plugin_settings(self) -> dict[str, Any]:
        """The plug-in's own keys."""
        return dict(self.model_extra or {})


class PolicyChainSettings(BaseModel):
    """``[policies]``: the chain, in order; each ``[policies.NAME]`` is that policy's own (checked by ``resolve``)."""

    model_config = ConfigDict(extra="allow", frozen=True)
    __pydantic_extra__: dict[str, dict[str, Any]]
    chain: tuple[str, ...] = ("backlog", "idle", "limits")
    folder: AbsolutePath = Path("/etc/burstd/policies")
    timeout_s: Seconds = 5.0

    @property
    def policy_tables(self) -> dict[str, dict[str, Any]]:
        """The settings of each policy that has a table."""
        return dict(self.model_extra or {})


HostKeyTrust = Literal["console", "first_use"]
NodeCheck = Literal[
    "cpus", "memory", "tmp", "disk", "gpus", "gpu_type", "os", "slurm", "munge", "users", "groups", "clock", "mounts",
    "architecture", "kernel", "glibc", "driver", "cuda", "memlock", "nofile", "stack", "nproc", "locale", "timezone",
    "modules", "sentinels", "mig", "gpu_memory_limit", "gpu_health", "gpu_clocks", "gpu_pcie", "gpu_test",
    "cvmfs", "container_runtimes", "network_mounts", "frameworks", "slurmctld", "prologs",
    "homes",
]  # fmt: skip


class NodeSettings(Section):
    """``[node]``: how a machine is reached, proved and made into a Slurm node."""

    ssh_user: str = "root"
    ssh_port: Annotated[int, Field(strict=True, ge=1, le=65535)] = 22
    ssh_key: AbsolutePath | None = Field(default=None, json_schema_extra=RESTART)
    connect_timeout_s: Seconds = 10.0
    host_keys: HostKeyTrust = "console"
    host_keys_of: dict[str, HostKeyTrust] = Field(default_factory=dict)
    munge_key: AbsolutePath = Field(default=Path("/etc/munge/munge.key"), json_schema_extra=SECRET)
    munge_socket: AbsolutePath | None = None
    unattended_h: Annotated[float, Field(strict=True, ge=0, allow_inf_nan=False)] = 12.0
    slurmd_options: NonEmptyStrings = ()
    skip_checks: tuple[NodeCheck, ...] = ()
    users: NonEmptyStrings = ("slurm",)
    compare_job_users: bool = True
    sentinels: Annotated[tuple[NodePath, ...], Field(max_length=64)] = ()
    modules: Annotated[tuple[Literal["*"] | ModuleName, ...], Field(max_length=64)] = ()
    cvmfs_max_behind: Annotated[int, Field(strict=True, ge=0)] = 0
    may_differ: tuple[NodeCheck, ...] = USUALLY_DIFFERENT
    os: str = ""
    gpu_names: dict[str, str] = Field(default_factory=dict)
    gpu_devices: str = "/dev/nvidia[0-9]*"
    clock_tolerance_s: Seconds = 30.0
    free_mib: MemoryMib = 256
    tmp_mib: MemoryMib = 0
    check_commands: dict[str, str] = Field(default_factory=dict)
    check_folder: AbsolutePath | None = None
    start_command: NonEmptyStrings = ()
    user_data: AbsolutePath | None = None
    timezone: str = "Etc/UTC"
    packages: NonEmptyStrings = ()
    commands: NonEmptyStrings = ()


XidNumber = Annotated[str, matching(r"[1-9][0-9]{0,4}", "must be the number of an Xid, from 1 to 99999")]


FindingName = Literal[
    "gpu_errors", "gpu_remap_failed", "gpu_remap_pending", "gpu_reset", "gpu_lost", "gpu_silent", "gpu_slow",
    "gpu_stranger", "disk_full", "mount_lost", "mount_silent", "io_error", "slurmd_killed",
]  # fmt: skip


class HealthSettings(Section):
    """``[health]``: what comes of faults of nodes at work, and of places where machines are bad."""

    xid: dict[XidNumber, Verdict] = Field(default_factory=dict)
    findings: dict[FindingName, Verdict] = Field(default_factory=dict)
    check_interval_s: Annotated[int, Field(ge=1, le=3600)] = 60
    half_life_d: Annotated[float, Field(ge=0.5, le=365)] = 14.0
    bad_share: Annotated[float, Field(gt=0, le=1)] = 0.3
    bad_weight: Annotated[float, Field(ge=1, le=1e6)] = 2.0
    bad_places: BadPlaces = BadPlaces.AVOID

    def place_rule(self) -> BadPlaceRule:
        """As the rest of burstd has it."""
        return BadPlaceRule(self.half_life_d, self.bad_share, self.bad_weight, self.bad_places)

    def rules(self) -> HealthRules:
        """For the table that nodes get."""
        return HealthRules(
            {int(xid): verdict for xid, verdict in self.xid.items()},
            {str(name): verdict for name, verdict in self.findings.items()},
            self.check_interval_s,
        )


class Settings(Section):
    """The whole file."""

    cluster: Annotated[str, matching(r"[a-z0-9-]{1,32}", "must be 1 to 32 of a-z, 0-9 and '-'")] = Field(
        json_schema_extra=RESTART
    )
    daemon: DaemonSettings = DaemonSettings()
    slurm: SlurmSettings = SlurmSettings()
    pools: dict[Name, PoolSettings] = Field(default_factory=dict)
    providers: dict[Name, ProviderSettings] = Field(default_factory=dict, json_schema_extra=RESTART)
    policies: PolicyChainSettings = PolicyChainSettings()
    node: NodeSettings = NodeSettings()
    health: HealthSettings = HealthSettings()
    sampler: SamplerSettings = SamplerSettings()
    idle_gpus: dict[RulePartition, IdleGpuSettings] = Field(default_factory=dict)
    frameworks: dict[FrameworkName, FrameworkSettings] = Field(default_factory=dict)
    staging: StagingSettings = StagingSettings()
    mounts: MountSettings = MountSettings()
    volumes: VolumeSettings = VolumeSettings()
    metrics: MetricsSettings = MetricsSettings()
    bill: BillSettings = BillSettings()
    rates: RateSettings | None = None
    site: SiteSettings = SiteSettings()
    notify: NotifySettings = NotifySettings()
    projects: dict[ProjectName, ProjectSettings] = Field(default_factory=dict)
    fair_share: FairShareSettings = FairShareSettings()
    web: WebSettings = Field(default=WebSettings(), json_schema_extra=RESTART)

    _source: TomlSource = PrivateAttr(default_factory=TomlSource)
    _warnings: tuple[SettingsFault, ...] = PrivateAttr(default=())

    @property
    def source(self) -> TomlSource:
        """Where it was read, for messages."""
        return self._source

    @property
    def warnings(self) -> tuple[SettingsFault, ...]:
        """Keys that the file has under a former name."""
        return self._warnings

    @property
    def database(self) -> str:
        """Path or URL of the database."""
        return self.daemon.database or str(self.daemon.state_dir / "burstd.db")

    @property
    def kept_dir(self) -> Path:
        """Where the files are that belong to the cluster, not to one head."""
        return self.daemon.shared_dir or self.daemon.state_dir

    @property
    def ssh_key(self) -> Path:
        """burstd's private ssh key; made at the first start where the setting is left out."""
        return self.node.ssh_key or self.kept_dir / "ssh_key"

    @property
    def host_keys_dir(self) -> Path:
        """Where the host keys of machines at work are, a file for each."""
        return self.kept_dir / "host_keys"

    @property
    def job_folder_key(self) -> Path:
        """What the names of jobs' folders are drawn from."""
        return self.kept_dir / "job-folders.key"

    @property
    def storage_keys_dir(self) -> Path:
        """Where the keys of storage nodes are that burstd has launched."""
        return self.kept_dir / "storage"

    @property
    def files_beside_database(self) -> tuple[Path, ...]:
        """What cannot be found out again and is not in the database; not all of it need be there."""
        return (
            self.ssh_key,
            self.host_keys_dir,
            *((self.job_folder_key, self.storage_keys_dir) if self.staging.enabled else ()),
        )

    @property
    def stage_socket(self) -> Path:
        """Where Slurm's hooks speak to burstd of jobs' data."""
        return self.staging.socket or self.daemon.runtime_dir / "stage.sock"

    @property
    def projects_table(self) -> Path:
        """Where job_submit.lua finds the projects that are in force."""
        return self.daemon.spool_dir / "projects.lua"

    @property
    def prolog_socket(self) -> Path:
        """Where burstd-prolog asks for the mounts of a job's nodes."""
        return self.daemon.runtime_dir / "prolog.sock"

    @property
    def mount_worker_socket(self) -> Path:
        """Where a burstd that is not root has mounts served."""
        return self.mounts.worker_socket or self.daemon.runtime_dir / "mount-worker.sock"

    @property
    def mount_streams_dir(self) -> Path:
        """What is known of the mounts on nodes, a file for each user of a node."""
        return self.daemon.state_dir / "mounts"

    @property
    def worker_socket(self) -> Path:
        """Where a burstd that is not root gets processes with users' rights."""
        return self.staging.worker_socket or self.daemon.runtime_dir / "user-worker.sock"

    @property
    def tuning(self) -> Tuning:
        """The times and limits that the core decides by."""
        named = {**dict(self.slurm), **dict(self.daemon), **dict(self.staging)}
        named["output_retention_s"] = self.staging.output_retention_h * 3600
        named["idle_gpus"] = {partition: rule.rule() for partition, rule in self.idle_gpus.items()}
        named["rates"] = Rates() if self.rates is None else self.rates.rates()
        named["site_costs"] = self.site.costs()
        named["figures_max_age_s"] = self.sampler.figures_max_age_s
        return Tuning(**{name: named[name] for name in Tuning.__dataclass_fields__})
