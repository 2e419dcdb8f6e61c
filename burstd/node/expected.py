"""What a machine must be, and one difference from that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from burstd.domain.cloud.offer import GpuMemoryLimit, GpuTest
from burstd.domain.slurm.shape import Gres, Shape
from burstd.node.facts import FactsRequest, MachineFacts, UserIds


@dataclass(frozen=True, slots=True)
class ExpectedMachine:
    """What a machine must be. Sizes in MiB, times in seconds."""

    shape: Shape
    slurm_version: tuple[int, ...]
    """``(22, 5, 8)``; ``(22, 5)`` accepts every 22.05."""
    users: Mapping[str, UserIds | None] = field(default_factory=dict)
    """Users who must have the same numbers as here; None: who is not known here must not be there either."""
    gpu_names: Mapping[str, str] = field(default_factory=dict)
    """GRES type -> text that the name of each GPU must hold (``a100`` -> ``A100-SXM4``); spaces are as good as _."""
    mig: tuple[Gres, ...] = ()
    """What each GPU must be cut into: profiles as types; empty: it is not looked at."""
    gpu_memory_limit: GpuMemoryLimit = "none"
    """What keeps jobs to their shards' part of a GPU's memory there ..."""
    shards_per_gpu: int = 0
    """... and how many shards a GPU has."""
    gpu_test: GpuTest | None = None
    """None: what nvidia-smi says counts, where there is one."""
    tmp_mib: int = 0
    free_mib: int = 256
    """In /var, for slurmd's spool and logs."""
    os: str = ""
    """``debian 12``; empty: as the reference, or any."""
    clock_tolerance_s: float = 30.0
    """munge refuses credentials that are five minutes old, or from the future."""
    slurmctld: tuple[tuple[str, ...], ...] = ()
    """Ports (``head:6817``) of which the name of the first must be known there, and one must answer, of each group."""
    prologs: Mapping[str, str] = field(default_factory=dict)
    """Files, or patterns of their paths, that slurmd runs for each job -> slurm.conf's setting."""
    homes: Mapping[str, str] = field(default_factory=dict)
    """Users -> the home directories that nothing brings there when a job starts."""
    mounts: bool = False
    """Trees of the site are mounted there."""
    sentinels: tuple[str, ...] = ()
    """Files and directories that must be readable there, files with the reference's content."""
    modules: tuple[str, ...] = ()
    """Names that ``module avail`` must know there, with the reference's versions; ``*``: all that it lists."""
    cvmfs_max_behind: int = 0
    """Revisions that a repository of CVMFS may be older than the reference's."""
    shown_trees: tuple[str, ...] = ()
    """Paths that burstd mounts there for each job, with ``{user}`` or ``{home}`` for a user's."""
    reference: MachineFacts | None = None
    """A node of the site; None: none was chosen."""
    skip: frozenset[str] = frozenset()
    """Checks to leave out, of CHECK_NAMES."""
    may_differ: frozenset[str] = frozenset()
    """Checks that only warn, of CHECK_NAMES."""

    def facts_request(self, gpu_devices: str = "") -> FactsRequest:
        """What a machine must be asked for to be judged by this. ``gpu_devices``: pattern of its GPUs' device files."""
        locale = self.reference.lang if self.reference is not None else ""
        slurmctld = tuple(dict.fromkeys(address for group in self.slurmctld for address in group))
        return FactsRequest(
            gpu_devices, tuple(self.users), self.sentinels, self.modules, locale, slurmctld, tuple(self.prologs),
            tuple(self.homes.values()),
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class CheckFailure:
    """One difference between what should be and what is."""

    name: str
    """The check that failed, one of CHECK_NAMES or of the site's own."""
    expected: str
    found: str
    remedy: str
    allowed: bool = False
    """It is named, and the machine is used nevertheless."""
    cause: str = ""
    """What the claim's error is where it is not the check's name."""

    def __str__(self) -> str:
        return f"{self.name}: {self.found} where {self.expected} is expected. {self.remedy}"
