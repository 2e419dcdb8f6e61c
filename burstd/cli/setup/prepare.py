"""What ``burstctl init`` is to write, made of the answers and of the running Slurm; nothing is changed yet."""

from __future__ import annotations

import ipaddress
import shlex
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from burstd.cli.setup.answers import AnswerRefused, Answers, Site, settings_text
from burstd.cli.setup.head import Head, SetupRefused, programs_folder, require_fit
from burstd.cli.setup.journal import Journal, read_text
from burstd.cli.setup.steps import CALLED_JOB_SUBMIT, OLD_SETTINGS, SETTINGS
from burstd.share import share_path
from burstd.slurm.config.check import default_gpu_memory, default_memory
from burstd.slurm.config.merge import included, merge_gres_conf, merge_slurm_conf, written_settings
from burstd.slurm.config.render import SlurmConfOptions, job_submit_lines, job_submit_text, required_settings

if TYPE_CHECKING:
    from burstd.settings import Settings
    from providers.sandbox.trial import Trial

_READ_AT_START = ("SelectType", "AuthType", "SlurmUser", "StateSaveLocation", "SlurmctldPort", "SlurmctldLogFile")
USABLE_MEMORY = 0.95
"""Of the memory that a cloud says; the kernel keeps the rest."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """``changes``: files of Slurm, whole; ``files``: new ones beside them. ``text``: burstd.toml, None: as it is.

    ``partitions``: those of the pools. ``sockets``: units of workers that the settings need. ``notes``: what the
    administrator must know of the site's files.
    """

    changes: Mapping[Path, str]
    partitions: Sequence[str]
    sockets: Sequence[str]
    files: Mapping[Path, str] = field(default_factory=dict)
    notes: Sequence[str] = ()
    text: str | None = None
    sandbox: Trial | None = None


def new_settings(head: Head, answers: Answers, address: str, *, replace_settings: bool) -> Wanted:
    """From the answers. Raises SetupRefused, AnswerRefused, MergeRefused.

    ``address``: slurmctld as machines reach it; empty: this host's own. ``replace_settings``: where there are some.
    """
    if Journal.load() is not None:
        raise SetupRefused(
            f"burstd is in Slurm already: change {SETTINGS} and run 'burstctl init --keep', "
            "or run 'burstctl uninit' first"
        )
    if SETTINGS.exists() and not replace_settings:
        raise SetupRefused(
            f"{SETTINGS} is there already: take it as it is with --keep, or have a new one written with --force, "
            f"which keeps this one as {OLD_SETTINGS}"
        )
    from burstd.settings import PluginRegistry, SettingsError, make_policies, parse_settings, resolve_plugins

    skip: list[str] = []
    trial = _plan_sandbox(head) if answers.kind == "sandbox" else None
    if trial is not None:
        from providers.sandbox.trial import TOKEN

        answers = replace(answers, keys={"url": trial.url, "token_file": str(TOKEN), **answers.keys})
        skip = ["prologs"] if trial.exact else ["prologs", "slurm"]
    server = address or (trial.gateway if trial is not None else _own_address())
    name, named = head.host
    known = [] if named else hosts_commands(server.partition(":")[0], name)
    site = Site(
        head.cluster, str(programs_folder()), server,
        [name for name in head.partitions if name != answers.partition], skip, known,
    )  # fmt: skip
    try:
        text = settings_text(_with_shapes(answers, site), site)
        settings = parse_settings(text, str(SETTINGS))
        plugins = PluginRegistry.installed()
        make_policies(settings, resolve_plugins(settings, plugins, check_files=False), plugins)
        return replace(_wanted(head, settings), text=text, sandbox=trial)
    except SettingsError as error:
        raise SetupRefused(f"these answers make no settings: {error}") from None


def kept_settings(head: Head) -> Wanted:
    """From burstd.toml as it is. Raises SetupRefused, MergeRefused."""
    from burstd.settings import PluginRegistry, SettingsError, load_settings, make_policies, resolve_plugins

    try:
        settings = load_settings(SETTINGS)
        plugins = PluginRegistry.installed(settings.policies.folder, settings.policies.timeout_s)
        make_policies(settings, resolve_plugins(settings, plugins), plugins)
        return _wanted(head, settings)
    except SettingsError as error:
        raise SetupRefused(str(error)) from None


def _wanted(head: Head, settings: Settings) -> Wanted:
    """Raises SettingsError, SetupRefused, MergeRefused."""
    from burstd.cli.offline.config import render_options
    from burstd.settings import build_pools
    from burstd.slurm.hostlist import expand

    pools = list(build_pools(settings, expand).values())
    options = replace(
        render_options(settings), version=head.version, default_memory_mib=default_memory(head.config),
        default_gpu_memory_mib=default_gpu_memory(head.config),
    )  # fmt: skip
    conf, gres = _conf_files(head.conf), _conf_files(head.conf.with_name("gres.conf"))
    changes = merge_slurm_conf(conf, pools, options) | merge_gres_conf(gres, pools, options, conf)
    beside: dict[Path, str] = {}
    notes = _unlike_running(head, conf)
    for setting in required_settings(pools, options):
        if setting.name == "JobSubmitPlugins":
            beside |= _job_submit(head.conf, options, notes)
        if setting.name == "BurstBufferType":
            for name in ("burst_buffer.lua", "burst_buffer.conf"):
                if _is_free(path := head.conf.with_name(name)):
                    beside[path] = read_text(share_path("config", "slurm", name))
    kinds = ("mount" if settings.mounts.rules() else "", "user" if settings.staging.enabled else "")
    sockets = [f"burstd-{kind}-worker.socket" for kind in kinds if kind]
    partitions = list(dict.fromkeys(name for pool in pools for name in pool.partitions))
    return Wanted(changes, partitions, sockets, beside, notes)


def _is_free(path: Path) -> bool:
    """Whether there is no such file, or it is init's own."""
    journal = Journal.load()
    return not path.exists() or (journal is not None and str(path) in journal.created)


def _job_submit(conf: Path, options: SlurmConfOptions, notes: list[str]) -> dict[Path, str]:
    """job_submit.lua to write; beside one of the site's own, which stays, another that it is to call."""
    theirs, ours = conf.with_name("job_submit.lua"), conf.with_name(CALLED_JOB_SUBMIT)
    made = job_submit_text(read_text(share_path("config", "slurm", "job_submit.lua")), options)
    if _is_free(theirs):
        return {theirs: made}
    text = read_text(theirs)
    copied = made.partition("\n")[0] in text  # burstd's, put there by hand
    if not copied and CALLED_JOB_SUBMIT not in text:
        notes.append(
            f"{theirs} is the site's own and stays. Put these lines first into its slurm_job_submit:\n"
            f'  burstd_job_submit = burstd_job_submit or dofile("{ours}")\n'
            "  if burstd_job_submit(job_desc, submit_uid, part_list) ~= slurm.SUCCESS then return slurm.ERROR end"
        )
    if not copied and _is_free(ours):
        return {ours: made}
    there = theirs if copied else ours
    lines = read_text(there).splitlines()
    notes += [f"{there} stays, and lacks the line: {line}" for line in job_submit_lines(options) if line not in lines]
    return {}


def _unlike_running(head: Head, conf: Mapping[Path, str]) -> list[str]:
    """Settings that slurmctld takes only when it is restarted. Raises SetupRefused where it would not fit then."""
    notes, next_start = [], dict(head.config)
    written = written_settings(conf)
    for name in _READ_AT_START:
        value, place = written.get(name.lower(), ("", ""))
        running, _, number = head.config.get(name, "").rstrip(")").partition("(")
        if value and running and value not in (running, number):
            notes.append(f"{place} has {name}={value}, and slurmctld runs with {running}: its restart takes the first")
            next_start[name] = value
    try:
        require_fit(replace(head, config=next_start))
    except SetupRefused as error:
        raise SetupRefused("; ".join([*notes, str(error)])) from None
    return notes


def _plan_sandbox(head: Head) -> Trial:
    from providers.sandbox.boxes.errors import SandboxError
    from providers.sandbox.trial import plan_trial

    try:
        return plan_trial(head.version)
    except SandboxError as error:
        raise SetupRefused(f"the sandbox cannot be made: {error}") from None


def _with_shapes(answers: Answers, site: Site) -> Answers:
    """Pools of which the CPUs or the memory are left open as the provider offers them. Raises AnswerRefused."""
    from burstd.cli.checks.offers import catalogs_of_clouds
    from burstd.settings import PluginRegistry, parse_settings

    if all(pool.cpus and pool.memory for pool in answers.pools):
        return answers
    guessed = replace(answers, pools=[replace(pool, cpus=1, memory=1, gres="") for pool in answers.pools])
    kind, text = answers.kind, settings_text(guessed, site)
    catalog = catalogs_of_clouds(parse_settings(text, str(SETTINGS)), PluginRegistry.installed(), [kind])[kind]
    pools = []
    for pool in answers.pools:
        if isinstance(catalog, str):
            raise AnswerRefused(f"{kind} does not say what {pool.type} has ({catalog}): give cpus and memory")
        shapes = [offer.shape for offer in catalog if fnmatchcase(offer.instance_type, pool.type)]
        if not shapes:
            raise AnswerRefused(f"{kind} offers no instance type {pool.type}: see 'burstctl provider offers'")
        least = min(shapes, key=lambda shape: (shape.cpus, shape.memory_mib))
        pools.append(
            replace(
                pool, cpus=pool.cpus or least.cpus, memory=pool.memory or int(least.memory_mib * USABLE_MEMORY),
                gres=pool.gres or ",".join(map(str, least.gres)),
            )
        )  # fmt: skip
    return replace(answers, pools=pools)


def hosts_commands(address: str, name: str) -> list[str]:
    """Shell commands by which a machine knows slurmctld's host by its name; ``address`` may be another name."""
    if address == name:
        return []
    try:
        ipaddress.ip_address(address)
    except ValueError:
        address = f"$(getent ahostsv4 {shlex.quote(address)} | sed 's/ .*//;q')"
    return [f'echo "{address} {name}" >>/etc/hosts']


def _own_address() -> str:
    """Of this host, by which packets leave it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            raise SetupRefused("this host has no route: say with --address how machines reach slurmctld") from None
        return str(probe.getsockname()[0])


def _conf_files(main: Path) -> dict[Path, str]:
    """A file of Slurm, and those that it includes."""
    found = {main: read_text(main)}
    left = [main]
    while left:
        path = left.pop()
        for word in included(found[path]):
            more = main.parent / word
            if more not in found and more.is_file():
                found[more] = read_text(more)
                left.append(more)
    return found
