"""The Prover that enters machines, by ssh or as their provider can: claims and pools in, errors of the model out."""

from __future__ import annotations

import ipaddress
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from burstd.domain.claim import Claim
from burstd.domain.claim import ClaimState as S
from burstd.domain.cloud.offer import FabricTest, GpuTest, Pool
from burstd.domain.cloud.quoting import one_line
from burstd.domain.errors import (
    NodeNotReady,
    NodeRefused,
    ProviderError,
    SchedulerRefused,
    SchedulerUnavailable,
)
from burstd.domain.health import HealthRules, verdict_table
from burstd.domain.launch_failure import LaunchFault
from burstd.domain.missing_home import HOMES, MissingHome
from burstd.domain.plugins.shell import CommandShell, Shell
from burstd.domain.slurm.slurmd_conf import SlurmdConf
from burstd.node.checks import failed_checks, format_version, head_homes, head_user_ids
from burstd.node.comparison import is_shown
from burstd.node.errors import (
    ClockNotSet,
    HeadNotReady,
    HostKeyMismatch,
    HostKeyUnknown,
    HostKeyUnobtainable,
    NotReachable,
    SlurmctldUnreachable,
    ValidationFailed,
)
from burstd.node.expected import CheckFailure, ExpectedMachine
from burstd.node.fabric import FABRIC_TEST, measure
from burstd.node.facts import FactsRequest, facts_script, read_facts
from burstd.node.frameworks import FRAMEWORKS, unproven_frameworks
from burstd.node.launch_log import launch_fault
from burstd.node.munge import head_credential, is_made_with
from burstd.node.reference import Reference
from burstd.node.slurmd_log import read_slurmd_log, registration_fault
from burstd.node.ssh.host_keys import HostKeyFiles, HostKeyPolicy, HostKeys, parse_console_host_keys
from burstd.node.user_data import node_json
from burstd.node.validation import (
    NVIDIA_DEVICES,
    Unattended,
    ValidationRequest,
    start_slurmd,
    validate_machine,
)
from burstd.planner.lifecycle.listing import abbreviated_list

if TYPE_CHECKING:
    from burstd.node.ssh.process import ProcessSession, SshProcess
    from burstd.node.ssh.session import SshSession, SshTarget

_Session = TypeVar("_Session", "SshSession", "ProcessSession")

_SLURMCTLD_PORT = "6817"
"""Where ``conf_server`` names none."""
_MAX_NAMED = 10
"""Differences of one check that a message names."""
HOMES_KNOWN_S = 3600.0
"""A home that a machine lacked is looked for again on a new one after this time."""
_LIMITED_BY = {"none": "nothing divides", "mps": "MPS divides", "dmem": "the kernel divides (dmem)"}
_VALIDATED = frozenset({S.READY, S.IN_SERVICE, S.DRAINING, S.TERMINATING})
"""States of claims whose machine has shown its host key once: no other is learned on the network's word."""


@dataclass(frozen=True, slots=True)
class ValidatorConfig:
    """What is the same for every machine of this cluster."""

    ssh_key: Path
    """burstd's private ssh key."""
    host_keys_dir: Path
    """Directory for the host keys of machines that live."""
    munge_key: Path
    conf_server: str
    """slurmctld as machines see it: ``head:6817``; empty where images have a slurm.conf."""
    munge_socket: str = ""
    """Of the head's munged; empty: munge's own default."""
    ssh_user: str = "root"
    ssh_port: int = 22
    host_key_policies: Mapping[str, HostKeyPolicy] = field(default_factory=dict)
    """Provider -> how its machines' host keys are learned; CONSOLE where it is not named."""
    users: tuple[str, ...] = ("slurm",)
    """Users who must have the same numbers everywhere, beside those whose jobs a machine is for."""
    compare_job_users: bool = True
    os: str = ""
    gpu_names: Mapping[str, str] = field(default_factory=dict)
    gpu_devices: str = NVIDIA_DEVICES
    clock_tolerance_s: float = 30.0
    tmp_mib: int = 0
    free_mib: int = 256
    mount_trees: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Pool whose machines show trees of the site -> paths of these."""
    sentinels: tuple[str, ...] = ()
    """Files and directories that every machine must be able to read."""
    pool_sentinels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Pool -> more of them."""
    modules: tuple[str, ...] = ()
    """Names that ``module avail`` must know on every machine; ``*``: all of the reference's."""
    cvmfs_max_behind: int = 0
    """Revisions that a repository of CVMFS may be older than the reference's."""
    skip_checks: frozenset[str] = frozenset()
    """Checks to leave out: ``burstd.node.checks.CHECK_NAMES``."""
    may_differ: frozenset[str] = frozenset()
    """Checks that only warn."""
    check_commands: Mapping[str, str] = field(default_factory=dict)
    """The site's own checks: name -> shell command that ends with 0 where all is well."""
    check_programs: Mapping[str, bytes] = field(default_factory=dict)
    """More of them: name -> a program that ends as Nagios' plug-ins do."""
    health: HealthRules = field(default_factory=HealthRules)
    """What comes of faults of nodes at work."""
    slurmd_options: tuple[str, ...] = ()
    unattended: Unattended | None = None
    """When a machine powers itself off; None: never."""
    start_command: tuple[str, ...] = ()
    """Run on a machine instead of starting slurmd, with ``{slot}`` and ``{conf_server}`` filled in."""
    connect_timeout_s: float = 10.0

    @property
    def all_sentinels(self) -> tuple[str, ...]:
        """Those of any pool."""
        every = (*self.sentinels, *(path for paths in self.pool_sentinels.values() for path in paths))
        return tuple(dict.fromkeys(every))


class SlurmNodeValidator:
    """Implements ``burstd.domain.plugins.validator.NodeValidator``. May be called from several threads."""

    def __init__(
        self,
        config: ValidatorConfig,
        *,
        slurm_version: Callable[[], tuple[int, ...]],
        wall: Callable[[], float],
        credential: Callable[[int], str] | None = None,
        shells: Mapping[str, Callable[[str, float], Shell]] | None = None,
        consoles: Mapping[str, Callable[[str], str]] | None = None,
        slurm_faults: Callable[[Pool], list[str]] = lambda _pool: [],
        slurmd_conf: Callable[[], SlurmdConf] = SlurmdConf,
        ssh_process: SshProcess | None = None,
    ) -> None:
        """``slurm_version``: slurmctld's; ``wall``: the head's clock, in seconds since 1970.

        ``credential``: a fresh one of the head's munged for a uid of the machine; by default munge is asked.
        ``shells``: ``Shells.shell`` of the providers that have it; machines of others are entered by ssh.
        ``consoles``: ``ConsoleLog.console`` of the providers that have it, for machines whose host key was lost.
        ``slurm_faults``: what keeps slurmctld from what a pool promises to jobs; may raise SchedulerUnavailable,
        SchedulerRefused. ``slurmd_conf``: of slurm.conf; may raise these too. ``ssh_process``: has the sessions by
        which machines become nodes, of which there may be thousands in a few minutes; None: this process has them.
        """
        self.config = config
        """What is in force; replaced whole, from the deciding thread."""
        self.reference: Reference | None = None
        """The node of the site that machines are compared with; replaced from the deciding thread."""
        self._slurm_version = slurm_version
        self._wall = wall
        self._credential = credential or self._munge_credential
        self._host_keys = HostKeyFiles(config.host_keys_dir)
        self._shells = shells or {}
        self._consoles = consoles or {}
        self._slurm_faults = slurm_faults
        self._slurmd_conf = slurmd_conf
        self._ssh_process = ssh_process
        self._unreachable_slots: dict[str, str] = {}
        """By claim the slots of machines that were proved, and whose host key is lost."""
        self._missing_homes: dict[tuple[str, str], tuple[MissingHome, float]] = {}
        """By pool and user, and when it was seen, by the head's clock."""
        self._seen_homes: dict[tuple[str, str], float] = {}
        """By pool and user, when a machine had it: those of another offer, or of an older image, may run jobs still."""

    def validate(self, claim: Claim, pool: Pool, console: Callable[[], str] | None, reached: Callable[[], None]) -> str:
        """Validates a machine. A NodeRefused names each difference; its cause is the first failed check."""
        request = self._request(claim, pool)
        result = validate_machine(request, lambda: self._command_shell(claim, console), reached)
        if result.failures:
            sentence = _difference_message(claim, result.failures)
            names = {failure.name for failure in result.failures}
            if "clock" in names <= {"clock", "slurmctld"}:
                raise ClockNotSet(sentence, result.facts.clock_off_s or 0.0)
            if names == {"slurmctld"}:
                # slurmctld may be down for a moment.
                raise SlurmctldUnreachable(sentence)
            raise ValidationFailed(sentence, cause=result.failures[0].cause or result.failures[0].name)
        self._check_slurm(pool)
        facts = result.facts
        if HOMES not in self.config.may_differ:
            self._note_homes(claim, request.expected.homes, facts.homes)
        has = f"{facts.cpus} CPUs, {facts.memory_mib} MiB, {len(facts.gpu_devices)} GPUs"
        if pool.shape.shards_per_gpu():
            has += f" whose memory {_LIMITED_BY[pool.gpu_memory_limit]}"
        if pool.frameworks:
            has += f", {', '.join(framework.name for framework in pool.frameworks)}"
        slurm = format_version(facts.slurm_version or ())
        said = f"{claim.address} has {has}, Slurm {slurm} and a munge that trusts ours ({result.seconds:.1f} s)"
        if not result.warnings:
            return said
        return one_line(f"{said}. It differs where it may: {_sentences(result.warnings)}.")

    def missing_homes(self) -> list[MissingHome]:
        """Implements NodeValidator."""
        fresh = self._wall() - HOMES_KNOWN_S
        return [home for home, at in self._missing_homes.copy().values() if at > fresh]

    def forget_homes(self) -> None:
        """What was seen may hold no more."""
        self._missing_homes.clear()
        self._seen_homes.clear()

    def differences(self, claim: Claim, pool: Pool) -> list[CheckFailure]:
        """How the machine of a claim that was validated differs by now. Raises NodeNotReady, NodeRefused."""
        expected = self._expected(claim, pool)
        with self._connect(claim, None) as session:
            request = expected.facts_request(self.config.gpu_devices)
            facts = read_facts(session, request, wall=self._wall, timeout_s=30.0)
        unproven = unproven_frameworks(facts, pool.frameworks) if FRAMEWORKS not in expected.skip else ()
        return failed_checks(facts, expected) + [
            replace(failure, allowed=FRAMEWORKS in expected.may_differ) for failure in unproven
        ]

    def console(self, claim: Claim) -> str:
        """What the machine has written to its console. Raises NodeRefused, ProviderError."""
        read = self._consoles.get(claim.offer.provider)
        if read is None:
            raise NodeRefused(f"{claim.offer.provider} shows no console", cause="console")
        return read(claim.instance_id)

    def slurmd_log(self, claim: Claim) -> str:
        """The end of slurmd's log. Raises NodeNotReady, NodeRefused."""
        with self._connect(claim, None) as session:
            return "\n".join(read_slurmd_log(session, times=True))

    def reference_script(self) -> str:
        """A script for ``sh`` that prints what ``Reference`` has of a node."""
        site = self.config
        return facts_script(FactsRequest(site.gpu_devices, (), site.all_sentinels, site.modules))

    def reference_warnings(self) -> list[str]:
        """What the reference cannot be a measure of."""
        found, site = self.reference, self.config
        return found.warnings(site.all_sentinels, site.modules) if found else []

    def start_slurmd(self, claim: Claim, pool: Pool, watch: str = "") -> None:
        """Starts slurmd on the claim's machine, and the watch over it."""
        site = self.config
        untested = {"gpu_health", "gpu_clocks"} if pool.gpu_test is GpuTest.NONE else set()
        verdicts = verdict_table(site.health, site.skip_checks | site.may_differ | untested)
        start_slurmd(
            claim.slot, lambda: self._command_shell(claim, None), conf_server=site.conf_server,
            options=site.slurmd_options, command=site.start_command, watch=watch, verdicts=verdicts,
            unattended=site.unattended,
        )  # fmt: skip

    def registration_fault(self, claim: Claim) -> str:
        """Implements NodeValidator."""
        with self._connect(claim, None) as session:
            return registration_fault(read_slurmd_log(session))

    def launch_fault(self, claim: Claim, number: str, *, held: bool) -> LaunchFault | None:
        """Implements NodeValidator."""
        with self._connect(claim, None) as session:
            return launch_fault(read_slurmd_log(session), number, held=held)

    def test_fabric(self, first: Claim, second: Claim, test: FabricTest) -> str:
        """Implements NodeValidator. Both machines are suspect where it is too slow: one test does not tell which."""
        pair = f"{first.slot} and {second.slot}"
        try:
            with self._connect(first, None) as one, self._connect(second, None) as other:
                measured = measure(one, other, first.address, test)
        except ValidationFailed as error:
            raise ValidationFailed(f"between {pair}: {error}", cause=FABRIC_TEST) from None
        text = f"{measured:.2f} GB/s between {pair} ({test.command})"
        if measured < test.min_gb_s:
            raise ValidationFailed(f"{text}, and the pool wants {test.min_gb_s:g} GB/s", cause=FABRIC_TEST)
        return text

    def probe(self, claim: Claim) -> None:
        """Raises where the machine does not answer, or answers with another host key, and KeyUnusable.

        Raises KeyUnusable as well.
        """
        try:
            self._connect(claim, None).close()
        except HostKeyMismatch as error:
            raise NotReachable(f"another machine answers at {claim.address}: {error}") from error
        except NotReachable:
            raise
        except (NodeNotReady, NodeRefused):
            return

    def connect(self, claim: Claim) -> Shell:
        """A way into the machine of a claim that was proved. Raises NodeNotReady, NodeRefused."""
        return self._connect(claim, None)

    def connect_own(self, name: str, address: str, known_hosts: Path) -> Shell:
        """A way into a node of the site's own, whose host key stands in a file of ssh's. Raises NodeNotReady."""
        from burstd.node.ssh.known_hosts import read_host_keys  # noqa: PLC0415 - see _ssh_session
        from burstd.node.ssh.session import SshTarget, open_ssh_session  # noqa: PLC0415

        site = self.config
        keys = read_host_keys(known_hosts, (name, address), site.ssh_port)
        if not keys:
            raise HostKeyUnknown(
                f"{known_hosts} has no key of {name}: add it, as with ssh-keyscan on a trusted network"
            )
        target = SshTarget(address or name, site.ssh_key, site.ssh_user, site.ssh_port)
        return open_ssh_session(target, HostKeys(HostKeyPolicy.CONSOLE, keys), site.connect_timeout_s)

    def ssh_session(self, claim: Claim, console: Callable[[], str] | None = None) -> SshSession:
        """One of ssh; ``console`` as for ``prove``, for a machine that has not been proved.

        Raises NodeNotReady, NodeRefused.
        """
        if claim.offer.provider in self._shells:
            raise NodeRefused(
                f"machines of {claim.offer.provider} have no ssh, which a storage node needs: let another provider "
                "fill it, or use a store of kind pvc or s3",
                cause="ssh",
            )
        return self._ssh_session(claim, console)

    def retain_only(self, claim_ids: Collection[str]) -> None:
        """Forgets the host keys of all claims but these, which live."""
        self._host_keys.retain_only(claim_ids)
        for gone in self._unreachable_slots.keys() - set(claim_ids):
            self._unreachable_slots.pop(gone, None)

    def alarms(self) -> list[str]:
        """What administrators should know now."""
        slots = sorted(self._unreachable_slots.copy().values())
        if not slots:
            return []
        why = f"{abbreviated_list(slots)} cannot be entered, and output stays there, because the host keys are lost"
        return [f"{why}: put the files of {self.config.host_keys_dir} back from a backup"]

    def _request(self, claim: Claim, pool: Pool) -> ValidationRequest:
        site = self.config
        return ValidationRequest(
            self._expected(claim, pool), self._munge_key(), self._credential, self._wall, site.gpu_devices,
            site.check_commands, site.check_programs, pool.gpu_test_limit_s, pool.gpu_min_gb_s, pool.frameworks,
            reused_as=claim.slot if claim.being_handed_over else "",
            node_json=node_json(claim.cluster, pool.name, claim.offer.provider),
        )  # fmt: skip

    def _expected(self, claim: Claim, pool: Pool) -> ExpectedMachine:
        site, reference, conf = self.config, self.reference, self._conf_of_slurmd()
        trees = site.mount_trees.get(pool.name, ())
        users = {*site.users, *(claim.users if site.compare_job_users else ())}
        return ExpectedMachine(
            shape=pool.machine_shape(), mig=pool.mig, gpu_memory_limit=pool.gpu_memory_limit,
            shards_per_gpu=pool.shape.shards_per_gpu(), slurm_version=self._slurm_version(),
            users=head_user_ids(sorted(users)), gpu_names=site.gpu_names, tmp_mib=site.tmp_mib,
            free_mib=site.free_mib, os=site.os, clock_tolerance_s=site.clock_tolerance_s,
            mounts=bool(trees), shown_trees=trees,
            sentinels=(*site.sentinels, *site.pool_sentinels.get(pool.name, ())), modules=site.modules,
            cvmfs_max_behind=site.cvmfs_max_behind, reference=reference.facts if reference else None,
            skip=site.skip_checks, may_differ=site.may_differ, gpu_test=pool.gpu_test,
            slurmctld=self._slurmctld_ports(conf.controllers), prologs=conf.prologs,
            homes=self._homes(claim.users, trees, conf),
        )  # fmt: skip

    def _homes(self, users: Collection[str], trees: Sequence[str], conf: SlurmdConf) -> dict[str, str]:
        """Those that may be there on the head, and that neither mounts, a Prolog nor PAM bring when a job starts."""
        unknown = not conf.controllers  # slurmctld has not said its settings
        if unknown or conf.pam or "Prolog" in conf.prologs.values():
            return {}
        if HOMES in self.config.skip_checks or any("{home}" in tree for tree in trees):
            return {}
        return {user: home for user, home in head_homes(sorted(users)).items() if not is_shown(home, trees)}

    def _note_homes(self, claim: Claim, wanted: Mapping[str, str], found: Mapping[str, bool]) -> None:
        now = self._wall()
        for user, home in wanted.items():
            key = (claim.pool, user)
            if found.get(home) is not False:
                self._missing_homes.pop(key, None)
            if found.get(home):
                self._seen_homes[key] = now
            elif found.get(home) is False and now - self._seen_homes.get(key, float("-inf")) >= HOMES_KNOWN_S:
                self._missing_homes[key] = (MissingHome(claim.pool, user, home, claim.slot), now)

    def _conf_of_slurmd(self) -> SlurmdConf:
        try:
            return self._slurmd_conf()
        except (SchedulerUnavailable, SchedulerRefused):
            return SlurmdConf()  # slurmctld is down, or about to be asked again.

    def _slurmctld_ports(self, controllers: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        servers = filter(None, self.config.conf_server.split(","))
        named = tuple(server if ":" in server else f"{server}:{_SLURMCTLD_PORT}" for server in servers)
        return tuple(group for group in dict.fromkeys((named, controllers)) if group)

    def _check_slurm(self, pool: Pool) -> None:
        try:
            faults = self._slurm_faults(pool)
        except (SchedulerUnavailable, SchedulerRefused) as error:
            raise HeadNotReady(
                f"slurmctld does not say whether it keeps what pool {pool.name} promises: {error}"
            ) from None
        if faults:
            raise HeadNotReady(f"slurm.conf lacks what pool {pool.name} promises. {'. '.join(faults)}")

    def _munge_key(self) -> bytes:
        file = self.config.munge_key
        try:
            key = file.read_bytes()
        except OSError as error:
            raise HeadNotReady(
                f"the cluster's munge key {file} cannot be read by user {os.geteuid()}: {error.strerror}. burstd needs "
                "it to make machines members of the cluster"
            ) from None
        if not key:
            raise HeadNotReady(f"the cluster's munge key {file} is empty: make one with mungekey")
        return key

    def _munge_credential(self, uid: int) -> str:
        """Of a munged that has the key which the machine gets: of another one no machine is believed by slurmctld."""
        credential = head_credential(uid, self.config.munge_socket)
        if not is_made_with(credential, self._munge_key()):
            raise HeadNotReady(
                f"the munged of the head has another key than {self.config.munge_key} as burstd sees it: "
                "'burstctl check' says which is to be restarted"
            )
        return credential

    def _connect(self, claim: Claim, console: Callable[[], str] | None) -> Shell:
        return self._provider_shell(claim) or self._ssh_session(claim, console)

    def _command_shell(self, claim: Claim, console: Callable[[], str] | None) -> CommandShell:
        if self._ssh_process is None:
            return self._connect(claim, console)
        return self._provider_shell(claim) or self._pinned_session(claim, console, self._ssh_process.open_session)

    def _provider_shell(self, claim: Claim) -> Shell | None:
        check_address(claim)
        open_shell = self._shells.get(claim.offer.provider)
        if open_shell is None:
            return None
        try:
            return open_shell(claim.instance_id, self.config.connect_timeout_s)
        except ProviderError as error:
            raise NotReachable(f"{claim.slot} cannot be entered: {error}") from error

    def _ssh_session(self, claim: Claim, console: Callable[[], str] | None) -> SshSession:
        # paramiko is slow to import, and a daemon that starts no machine needs none of it.
        from burstd.node.ssh.session import open_ssh_session  # noqa: PLC0415

        return self._pinned_session(claim, console, open_ssh_session)

    def _pinned_session(
        self, claim: Claim, console: Callable[[], str] | None,
        open_session: Callable[[SshTarget, HostKeys, float], _Session],
    ) -> _Session:  # fmt: skip
        """With the host key that is known of the claim's machine, or learned."""
        from burstd.node.ssh.session import SshTarget, check_port_listening  # noqa: PLC0415 - see _ssh_session

        if not claim.address:
            raise NotReachable(f"{claim.slot}: the provider has told no address of instance {claim.instance_id} so far")
        site = self.config
        target = SshTarget(claim.address, site.ssh_key, site.ssh_user, site.ssh_port)
        known = self._host_keys.load_keys(claim.id)
        if known is None:
            # A console costs a call to the cloud; as long as nobody answers there is no need for one.
            check_port_listening(target, site.connect_timeout_s)
            known = self._learn_host_keys(claim, console)
        session = open_session(target, known, site.connect_timeout_s)
        self._unreachable_slots.pop(claim.id, None)
        # Only now: what a wrong machine showed must not be remembered.
        if self._host_keys.load_keys(claim.id) is None:
            self._host_keys.save_keys(claim.id, HostKeys(known.trust, known.keys or frozenset({session.host_key})))
        return session

    def _learn_host_keys(self, claim: Claim, console: Callable[[], str] | None) -> HostKeys:
        provider = claim.offer.provider
        trust = self.config.host_key_policies.get(provider, HostKeyPolicy.CONSOLE)
        validated = claim.state in _VALIDATED
        if trust is HostKeyPolicy.FIRST_USE and not validated:
            return HostKeys(trust)
        if validated:
            self._unreachable_slots[claim.id] = claim.slot
            read = self._consoles.get(provider)
            console = partial(read, claim.instance_id) if read is not None else None
        if console is None and validated:
            raise HostKeyUnobtainable(
                f"the host key of {claim.slot} is lost, and {provider} shows no console to learn it from again: put "
                f"{self.config.host_keys_dir / claim.id} back from a backup"
            )
        if console is None:
            raise HostKeyUnobtainable(
                f"provider {provider} shows no console, so the host keys of its machines cannot be known: set "
                f'host_keys = "first_use" for it if its network is to be trusted'
            )
        try:
            keys = parse_console_host_keys(console())
        except ProviderError as error:
            raise HostKeyUnknown(f"the console of {claim.instance_id} cannot be read now: {error}") from error
        if not keys and validated:
            raise HostKeyUnknown(
                f"the host key of {claim.slot} is lost, and the console of {claim.instance_id} shows none any more: "
                f"put {self.config.host_keys_dir / claim.id} back from a backup"
            )
        if not keys:
            raise HostKeyUnknown(f"the console of {claim.instance_id} shows no host keys so far: cloud-init is at work")
        return HostKeys(trust, keys)


def check_address(claim: Claim) -> None:
    """Whether it can be a machine's: a cloud says it, burstd goes there, and Slurm is told. Raises NodeRefused."""
    if not claim.address:
        return
    try:
        address = ipaddress.ip_address(claim.address)
    except ValueError:
        address = None
    inside = address is not None and (getattr(address, "ipv4_mapped", None) or address)
    if not inside or inside.is_loopback or inside.is_link_local or inside.is_unspecified or inside.is_multicast:
        raise NodeRefused(
            f"{claim.offer.provider} says that {claim.slot} has the address {claim.address!r}, which no machine has",
            cause="address",
        )


def _difference_message(claim: Claim, failures: tuple[CheckFailure, ...]) -> str:
    return f"{claim.offer.id} gave a machine that differs: {_sentences(failures)}"


def _sentences(failures: tuple[CheckFailure, ...]) -> str:
    """One for each, but of a check no more than _MAX_NAMED; the last has no full stop."""
    said: list[str] = []
    counts = Counter(failure.name for failure in failures)
    for name, count in counts.items():
        said += [str(failure) for failure in failures if failure.name == name][:_MAX_NAMED]
        if count > _MAX_NAMED:
            said.append(f"{name}: {count - _MAX_NAMED} more")
    return ". ".join(said)
