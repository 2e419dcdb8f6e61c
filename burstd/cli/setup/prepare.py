"""What ``burstctl init`` is to write, made of the answers and of the running Slurm; nothing is changed yet."""

from __future__ import annotations

import socket
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

from burstd.cli.setup.answers import AnswerRefused, Answers, Site, settings_text
from burstd.cli.setup.head import Head, SetupRefused, programs_folder
from burstd.cli.setup.journal import read_text
from burstd.cli.setup.steps import SETTINGS
from burstd.slurm.config.merge import included, merge_gres_conf, merge_slurm_conf

if TYPE_CHECKING:
    from burstd.domain.cloud.offer import Pool
    from burstd.settings import Settings
    from providers.sandbox.trial import Trial

USABLE_MEMORY = 0.92
"""Of the memory that a cloud says; the kernel keeps the rest."""


def plan_sandbox(head: Head) -> Trial:
    """Release and network of a sandbox on this host. Raises SetupRefused."""
    from providers.sandbox.boxes.errors import SandboxError
    from providers.sandbox.trial import plan_trial

    try:
        return plan_trial(head.version)
    except SandboxError as error:
        raise SetupRefused(f"the sandbox cannot be made: {error}") from None


def make_settings(head: Head, answers: Answers, address: str, trial: Trial | None) -> tuple[str, Settings, list[Pool]]:
    """burstd.toml as text, and what it says. Raises SetupRefused, AnswerRefused.

    ``address``: slurmctld as machines reach it; empty: this host's own.
    """
    from burstd.settings import (
        PluginRegistry,
        SettingsError,
        build_pools,
        make_policies,
        parse_settings,
        resolve_plugins,
    )
    from burstd.slurm.hostlist import expand

    skip: list[str] = []
    if trial is not None:
        from providers.sandbox.trial import TOKEN

        answers = replace(answers, keys={"url": trial.url, "token_file": str(TOKEN), **answers.keys})
        skip = [] if trial.exact else ["slurm"]
    server = address or (trial.gateway if trial is not None else _own_address())
    name, named = head.host
    known = [] if named else [f"echo '{server.partition(':')[0]} {name}' >>/etc/hosts"]
    site = Site(
        head.cluster, str(programs_folder()), server,
        [name for name in head.partitions if name != answers.partition], skip, known,
    )  # fmt: skip
    try:
        answers = _with_shapes(answers, site)
        text = settings_text(answers, site)
        settings = parse_settings(text, str(SETTINGS))
        plugins = PluginRegistry.installed()
        make_policies(settings, resolve_plugins(settings, plugins, check_files=False), plugins)
        return text, settings, list(build_pools(settings, expand).values())
    except SettingsError as error:
        raise SetupRefused(f"these answers make no settings: {error}") from None


def _with_shapes(answers: Answers, site: Site) -> Answers:
    """Pools of which the CPUs or the memory are left open as the provider offers them. Raises AnswerRefused."""
    from burstd.cli.offline.offers_check import catalogs_of_clouds
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


def _own_address() -> str:
    """Of this host, by which packets leave it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            raise SetupRefused("this host has no route: say with --address how machines reach slurmctld") from None
        return str(probe.getsockname()[0])


def slurm_changes(settings: Settings, pools: list[Pool], head: Head) -> tuple[dict[Path, str], dict[Path, str]]:
    """What slurm.conf and gres.conf become. Raises MergeRefused."""
    from burstd.cli.offline.config import render_options

    options = replace(render_options(settings), version=head.version)
    conf, gres = _conf_files(head.conf), _conf_files(head.conf.with_name("gres.conf"))
    return merge_slurm_conf(conf, pools, options), merge_gres_conf(gres, pools, options, conf)


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
