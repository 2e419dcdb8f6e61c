"""burstctl check: the running Slurm, this host, clouds and nodes in service beside what the settings need.

What takes long to load is imported where it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from burstd.api.answers.text import plural
from burstd.cli.offline.config import DEFAULT_CONFIG, ConfigOption, load_pools, options_in_force, slurm_commands
from burstd.cli.output import ConsoleOutput
from burstd.cli.plain_text import print_json
from burstd.cli.session import ApiClient, DaemonUnreachable, ExitCode, with_client

if TYPE_CHECKING:
    from burstd.api.answers.nodes import DifferencesView
    from burstd.slurm.config.check import SlurmConfFinding


@with_client
def check(
    burstd: ApiClient,
    file: ConfigOption = DEFAULT_CONFIG,
    deep: Annotated[bool, typer.Option("--deep", help="Then run a job on a machine of a cloud; its cost.")] = False,
    user: Annotated[str, typer.Option(help="With --deep: whose job, from whose home; default: who ran sudo.")] = "",
    pool: Annotated[str, typer.Option(help="With --deep: on which pool; default: the first without GPUs.")] = "",
) -> None:
    """Compare the running Slurm with what the pools need, and nodes in service with what they must be."""
    if deep and burstd.json:
        burstd.fail(ExitCode.USAGE, "--deep prints each step as it comes; leave --json out.")
    if deep:
        check_deep(burstd, file, user, pool)
    else:
        _check(burstd, file)


def check_deep(burstd: ApiClient, file: Path, user: str = "", pool: str = "") -> None:
    """``burstctl check --deep``."""
    from burstd.cli.setup.deep import try_job

    _check(burstd, file)
    settings, pools = load_pools(burstd, file)
    try_job(burstd, settings, pools, user, pool)


def _check(burstd: ApiClient, file: Path) -> None:
    from burstd.cli.checks.host import has_address, resolved, slurmctld_findings
    from burstd.cli.checks.mounts import home_findings, mounts_findings
    from burstd.cli.checks.munge import munge_findings
    from burstd.cli.checks.offers import catalogs_of_daemon, offer_findings
    from burstd.cli.checks.rights import rights_findings
    from burstd.cli.checks.staging import staging_findings
    from burstd.domain.errors import SchedulerRefused, SchedulerUnavailable
    from burstd.slurm.commands.controller import slurmctld_version
    from burstd.slurm.config.check import compare_slurm_conf, read_running_slurm
    from burstd.slurm.config.project_check import projects_findings

    settings, pools = load_pools(burstd, file)
    options, commands = options_in_force(burstd, settings), slurm_commands(settings)
    try:
        running = read_running_slurm(commands, pools)
        projects = [*projects_findings(options.projects, running.config, commands)]
    except (SchedulerUnavailable, SchedulerRefused) as error:
        burstd.fail(ExitCode.UNREACHABLE, f"Slurm cannot be asked: {error}.")
    providers = list(dict.fromkeys(rule.provider for pool in pools for rule in pool.rules))
    of_daemon = catalogs_of_daemon(burstd, providers)
    catalogs, unread = of_daemon or ({}, {})
    version = "{}.{:02}.{}".format(*(slurmctld_version(running.config) or (0, 0, 0)))
    findings = [
        *compare_slurm_conf(pools, options, running),
        *projects,
        *slurmctld_findings(running.config, settings.slurm.conf_server, resolved, has_address),
        *munge_findings(settings, running.config),
        *staging_findings(settings, running.config),
        *mounts_findings(settings),
        *home_findings(settings),
        *offer_findings(pools, catalogs),
        *rights_findings(settings, file, running.config, providers if of_daemon is None else ()),
    ]
    broken = [finding for finding in findings if not finding.recommended]
    compared, why_not = _compare_nodes(burstd)
    refused = any(not one["allowed"] for node in compared.get("nodes", ()) for one in node["differences"])
    ok = not broken and not refused
    if burstd.json:
        found = [_finding_json(finding) for finding in findings]
        print_json({"ok": ok, "slurm": version, "findings": found, "nodes": compared.get("nodes", []),
                    "reference_warnings": compared.get("warnings", []),
                    "nodes_unchecked": why_not, "offers_unchecked": unread})  # fmt: skip
    else:
        out = ConsoleOutput()
        _print_findings(out, version, broken, [finding for finding in findings if finding.recommended])
        for name, why in unread.items():
            out.line(f"The offers of {name} are not compared: {why}")
        if why_not:
            out.line(f"Nodes in service are not compared: {why_not}")
        else:
            from burstd.api.answers.nodes import DifferencesView

            _print_differences(out, burstd.parse(DifferencesView, compared))
    if not ok:
        raise typer.Exit(ExitCode.NEGATIVE)


def _compare_nodes(burstd: ApiClient) -> tuple[dict[str, Any], str]:
    """How the nodes in service differ from what they should be, and why that is not known."""
    try:
        status, answer = burstd.request_status("POST", "/reference/check")
    except DaemonUnreachable as error:
        return {}, str(error).partition("\n")[0]
    return (answer, "") if status == 200 else ({}, str(answer.get("error", f"the daemon answered {status}.")))


def _print_differences(out: ConsoleOutput, answer: DifferencesView) -> None:
    from burstd.slurm.hostlist import compress

    if not answer.reference:
        out.line("There is no reference for the nodes' software: choose one with 'burstctl node reference NODE'.")
    for warning in answer.warnings:
        out.line(("Warning", "bold yellow"), f": {warning}.")
    nodes_by_difference: dict[tuple[str, str, str, str, bool], list[str]] = {}
    for node in answer.nodes:
        if node.error:
            out.line((node.node, "bold yellow"), f": not compared: {node.error}")
        for d in node.differences:
            nodes_by_difference.setdefault((d.check, d.expected, d.found, d.remedy, d.allowed), []).append(node.node)
    for (name, expected, found, remedy, allowed), nodes in nodes_by_difference.items():
        out.blank()
        subject = (f"{compress(nodes)}: {name}", "bold yellow" if allowed else "bold red")
        out.line(subject, f": wanted {expected}, found {found}{' (which may differ)' if allowed else ''}")
        out.note(f"Remedy: {remedy}.")
    alike = sum(not node.error and not node.differences for node in answer.nodes)
    if alike:
        out.line(f"{plural(alike, 'node')} in service {'is' if alike == 1 else 'are'} as validation wants.")


def _finding_json(finding: SlurmConfFinding) -> dict[str, object]:
    return {
        "subject": finding.subject,
        "wanted": finding.wanted,
        "found": finding.found,
        "breaks": finding.consequence,
        "remedy": finding.remedy,
        "advice": finding.recommended,
    }


def _print_findings(
    out: ConsoleOutput, version: str, broken: Sequence[SlurmConfFinding], advice: Sequence[SlurmConfFinding]
) -> None:
    if not broken:
        out.line(f"Slurm {version} has what the pools need.")
    for findings, head, style in (
        (broken, f"The pools lack {plural(len(broken), 'thing')} (Slurm {version}):", "bold red"),
        (advice, "Recommended:", "bold yellow"),
    ):
        if findings:
            out.line((head, "bold"))
        for finding in findings:
            out.blank()
            out.line((finding.subject, style), f": wanted {finding.wanted}, found {finding.found}")
            out.note(f"As it is: {finding.consequence}.")
            out.note(f"Remedy: {finding.remedy}.")
