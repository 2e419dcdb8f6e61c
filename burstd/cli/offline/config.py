"""burstctl config, slurm-config: the settings, and the lines of slurm.conf for their pools.

What takes long to load (pydantic's settings, plug-ins, SQLAlchemy) is imported by the commands that need it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from burstd.api.answers.text import plural
from burstd.cli.output import ConsoleOutput
from burstd.cli.plain_text import print_json
from burstd.cli.session import ApiClient, DaemonUnreachable, ExitCode, with_client

if TYPE_CHECKING:
    from burstd.domain.cloud.offer import Pool
    from burstd.settings import Settings, SettingsFault
    from burstd.settings.projects import ProjectSettings
    from burstd.slurm.commands.run import SlurmCommands
    from burstd.slurm.config.check import SlurmConfFinding
    from burstd.slurm.config.render import SlurmConfOptions

app = typer.Typer(help="The settings, burstd.toml.", no_args_is_help=True)
DEFAULT_CONFIG = Path("/etc/burstd/burstd.toml")
ConfigOption = Annotated[Path, typer.Option("--config", envvar="BURSTD_CONFIG", metavar="FILE", help="The settings.")]
SlurmVersion = tuple[int, int, int]


@app.command("check")
@with_client
def check_config(
    burstd: ApiClient,
    file: Annotated[Path, typer.Argument(metavar="[FILE]", envvar="BURSTD_CONFIG", help="The file.")] = DEFAULT_CONFIG,
    files: Annotated[bool, typer.Option(help="Also check the files that it names: keys, their modes.")] = True,
) -> None:
    """Check a settings file whole, with its plug-ins; the daemon need not run."""
    from burstd.cli.checks.mounts import mounts_findings
    from burstd.settings import (
        PluginRegistry,
        SettingsError,
        build_pools,
        load_settings,
        make_policies,
        resolve_plugins,
        unused_policy_tables,
    )
    from burstd.settings.frameworks import unused_frameworks
    from burstd.settings.idle_gpus import unmeasured_rules
    from burstd.settings.notify import unusable_programs
    from burstd.settings.rates import old_rates
    from burstd.slurm.hostlist import expand

    try:
        settings = load_settings(file, check_files=files)
        plugins = PluginRegistry.installed(settings.policies.folder, settings.policies.timeout_s)
        make_policies(settings, resolve_plugins(settings, plugins, check_files=files), plugins)
        made = build_pools(settings, expand)
    except SettingsError as error:
        if burstd.json:
            print_json({"ok": False, "file": str(file), "faults": _faults_json(error.faults)})
        else:
            ConsoleOutput().line(str(error))
        raise typer.Exit(ExitCode.NEGATIVE) from None
    _fail_on_files(burstd, file, settings if files else None)
    slots = sum(len(pool.slots) for pool in made.values())
    # Not faults: a tree may be mounted, and a program installed, after burstd has started.
    warnings = [
        *settings.warnings,
        *unused_frameworks(settings),
        *unused_policy_tables(settings),
        *unmeasured_rules(settings),
        *old_rates(settings),
        *(unusable_programs(settings.notify) if files else ()),
        *(_as_warning(finding) for finding in (mounts_findings(settings) if files else ())),
    ]
    if burstd.json:
        print_json({"ok": True, "file": str(file), "faults": [], "warnings": _faults_json(warnings)})
    else:
        for warning in warnings:
            ConsoleOutput().line(f"warning: {warning}")
        parts = [plural(len(made), "pool"), plural(slots, "slot"), plural(len(settings.providers), "provider")]
        if settings.frameworks:
            parts.append(plural(len(settings.frameworks), "framework"))
        staging = settings.staging
        if staging.enabled:
            parts.append(f"staging through {staging.store} ({staging.stores[staging.store].kind})")
        chain = ", ".join(settings.policies.chain) or "none"
        ConsoleOutput().line(f"{file} is right: {', '.join(parts)}, policies {chain}.")


@app.command("reload")
@with_client
def reload_config(burstd: ApiClient) -> None:
    """Have the daemon reload its settings; it refuses faulty ones and keeps the old ones."""
    burstd.run_command("POST", "/reload")


def _fail_on_files(burstd: ApiClient, file: Path, settings: Settings | None) -> None:
    """Ends the program where root can use all files of the settings, and burstd's user cannot."""
    from burstd.cli.checks.rights import file_findings

    found = [] if settings is None else file_findings(settings, file)
    if found and burstd.json:
        faults = [{"key": f.subject, "line": None, "text": f"{f.found}: {f.remedy}"} for f in found]
        print_json({"ok": False, "file": str(file), "faults": faults})
    elif found:
        ConsoleOutput().line(f"{file} has {plural(len(found), 'fault')}:")
        for f in found:
            ConsoleOutput().line(f"  {f.subject}: {f.found}: {f.remedy}")
    if found:
        raise typer.Exit(ExitCode.NEGATIVE)


def _as_warning(finding: SlurmConfFinding) -> SettingsFault:
    from burstd.settings import SettingsFault

    text = f"{finding.subject}: wanted {finding.wanted}, found {finding.found}; {finding.consequence}"
    return SettingsFault(("mounts",), f"{text}. Remedy: {finding.remedy}")


def _faults_json(faults: Sequence[SettingsFault]) -> list[dict[str, object]]:
    from burstd.settings.toml_source import dotted_key

    return [{"key": dotted_key(fault.path), "line": fault.line, "text": fault.text} for fault in faults]


def read_settings(burstd: ApiClient, file: Path) -> Settings:
    """The settings of a file; ends the program with their faults. The files that they name are not looked at."""
    from burstd.settings import SettingsError, load_settings

    try:
        # Keys and their modes are of no concern, and anyone may ask.
        return load_settings(file, check_files=False)
    except SettingsError as error:
        burstd.fail(ExitCode.NEGATIVE, str(error))


@with_client
def slurm_config(
    burstd: ApiClient,
    file: ConfigOption = DEFAULT_CONFIG,
    gres: Annotated[bool, typer.Option("--gres", help="The lines for gres.conf instead.")] = False,
    slurm: Annotated[
        str, typer.Option(metavar="VERSION", help="For this Slurm (24.11); default: the running one.")
    ] = "",
) -> None:
    """Print the lines that slurm.conf (with --gres: gres.conf) needs for the configured pools."""
    from burstd.slurm.config.render import gres_conf_lines, slurm_conf_fragment

    settings, pools = load_pools(burstd, file)
    version = _parse_version(burstd, slurm) if slurm else None
    options = _running_slurm(settings, options_in_force(burstd, settings), version)
    texts = {"slurm.conf": slurm_conf_fragment(pools, options), "gres.conf": gres_conf_lines(pools, options)}
    if burstd.json:
        print_json(texts)
    else:
        typer.echo(texts["gres.conf" if gres else "slurm.conf"], nl=False)


def load_pools(burstd: ApiClient, file: Path) -> tuple[Settings, list[Pool]]:
    """A file's settings, read as ``read_settings`` does, and their pools."""
    from burstd.settings import SettingsError, build_pools
    from burstd.slurm.hostlist import expand

    settings = read_settings(burstd, file)
    try:
        return settings, list(build_pools(settings, expand).values())
    except SettingsError as error:
        burstd.fail(ExitCode.NEGATIVE, str(error))


def render_options(settings: Settings) -> SlurmConfOptions:
    """What the lines for slurm.conf are made from, by the settings alone."""
    from burstd.settings.projects import projects_of
    from burstd.slurm.config.projects import marked_projects
    from burstd.slurm.config.render import SlurmConfOptions
    from burstd.slurm.projects import kept_lines

    slurm, kept = settings.slurm, kept_lines(settings.projects_table)
    try:
        made = marked_projects(kept.read_text(encoding="utf-8").splitlines())
    except OSError:
        made = []
    return SlurmConfOptions(
        programs=str(slurm.programs),
        onprem_partitions=slurm.keep_partitions,
        resume_timeout_s=slurm.resume_timeout_s,
        suspend_timeout_s=slurm.suspend_timeout_s,
        devices=slurm.devices,
        configless=bool(slurm.conf_server),
        staging=settings.staging.enabled,
        prolog=bool(settings.mounts.trees),
        workdir_partitions=settings.staging.workdir.partitions if settings.staging.enabled else (),
        brokered_partitions=_pool_partitions(settings) if "broker" in settings.policies.chain else (),
        projects=tuple(projects_of(settings.projects).values()),
        made_projects=tuple(made),
        kept_lines=str(kept),
    )


def _pool_partitions(settings: Settings) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for pool in settings.pools.values() for name in pool.partitions))


def options_in_force(burstd: ApiClient, settings: Settings) -> SlurmConfOptions:
    """With what 'burstctl project set' has changed, where the daemon answers."""
    from burstd.settings.projects import projects_of

    projects = projects_of(_changed_projects(burstd, settings.projects))
    return replace(render_options(settings), projects=tuple(projects.values()))


def _changed_projects(burstd: ApiClient, written: Mapping[str, ProjectSettings]) -> Mapping[str, ProjectSettings]:
    from burstd.domain.project import ProjectOverride, SetupStep
    from burstd.settings.project_overrides import projects_in_force

    if not written:
        return written
    try:
        status, answer = burstd.request_status("GET", "/projects")
    except DaemonUnreachable:
        return written
    changes = [
        ProjectOverride(
            view["name"], {key: _as_written(key, view[key]) for key in view["changed"]}, created=False,
            pending=SetupStep.NONE, by="", since=0.0,
        )
        for view in (answer["projects"] if status == 200 else ())
        if view["name"] in written and view["changed"]
    ]  # fmt: skip
    return projects_in_force(written, changes)[0]


def _as_written(key: str, value: Any) -> object:
    """A value of an answer as burstd.toml has it; None: as if the key were not there."""
    from burstd.domain.project import gpu_number

    if key in ("quota", "weight", "limit") and value is not None:
        return gpu_number(Fraction(value).limit_denominator(10_000))
    return None if value == "" else value


def slurm_commands(settings: Settings) -> SlurmCommands:
    """The Slurm that the settings name."""
    from burstd.slurm.commands.run import SlurmCommands

    return SlurmCommands(bin_dir=settings.slurm.bin_dir, conf=settings.slurm.conf)


def _running_slurm(settings: Settings, options: SlurmConfOptions, chosen: SlurmVersion | None) -> SlurmConfOptions:
    """With its version, unless one is chosen, and its partitions and features, where projects need them."""
    from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable
    from burstd.slurm.config.check import read_partitions
    from burstd.slurm.config.project_check import read_features

    commands = slurm_commands(settings)
    if chosen is not None:
        options = replace(options, version=chosen)
    try:
        if chosen is None:
            options = replace(options, version=commands.version())
        if options.projects:
            options = replace(options, partitions=read_partitions(commands))
            options = replace(options, features=read_features(commands, options.projects))
    except (SchedulerUnavailable, SchedulerRefused) as error:
        if chosen is None:
            typer.echo(f"burstctl: these are the lines for Slurm 22.05 (choose with --slurm), since {error}", err=True)
    return options


def _parse_version(burstd: ApiClient, text: str) -> SlurmVersion:
    match = re.fullmatch(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    if match is None:
        burstd.fail(ExitCode.USAGE, f"--slurm: {text!r} is no version; write 22.05 or 24.11.5.")
    return int(match[1]), int(match[2]), int(match[3] or 0)
