"""burstctl provider"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from datetime import datetime
from decimal import Decimal
from http import HTTPStatus
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from burstd.api.answers.text import abbreviated_list, ago, money_text, plural
from burstd.cli.commands.status import bad_place_text, breaker_text
from burstd.cli.offline.config import DEFAULT_CONFIG, ConfigOption, read_settings
from burstd.cli.output import ConsoleOutput
from burstd.cli.session import (
    ApiClient,
    DaemonNotRunning,
    DaemonUnreachable,
    ExitCode,
    pool_names,
    provider_names,
    with_client,
)
from burstd.cli.watch import listing
from burstd.domain.errors import BurstdError
from burstd.domain.plugins.provider import Finding
from burstd.domain.units import memory_text

if TYPE_CHECKING:
    from burstd.api.answers.providers import CheckView, FindingView, OffersView, OfferView, ProvidersView
    from burstd.settings import Settings

app = typer.Typer(help="The clouds: their state, their offers, whether launches would work.", no_args_is_help=True)
ProviderArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="A provider of burstd.toml.", autocompletion=provider_names)
]
PROVIDER_CHECK_REQUEST_TIMEOUT_S = 150.0
"""Longer than the daemon's own limit for a self-check, in seconds."""
_CHECK_STYLES = {True: ("ok", "green"), False: ("not ok", "bold red"), None: ("?", "yellow")}


@app.command("list")
@listing
def list_providers(burstd: ApiClient) -> None:
    """All clouds: when they were last listed, what they have, who uses them, what is wrong."""
    from burstd.api.answers.providers import ProvidersView

    burstd.show(ProvidersView, burstd.get_json("/providers"), _print_providers)


def _print_providers(out: ConsoleOutput, answer: ProvidersView) -> None:
    now = answer.now
    if not answer.providers:
        out.line("The settings name no provider.")
        return
    out.table(
        ("PROVIDER", "", "LISTED>", "INSTANCES*", "OFFERS>", "TYPES>", "ZONES*", "POOLS*"),
        [
            (
                p.name,
                Text("ok", "green") if p.ok else Text("down", "bold red"),
                ago(p.listed, now),
                ", ".join(f"{n} {state}" for state, n in p.instances.items()) or "none",
                str(p.offers),
                str(p.instance_types),
                abbreviated_list(p.zones, 4),
                abbreviated_list(p.pools, 4),
            )
            for p in answer.providers
        ],
    )
    for p in answer.providers:
        for alarm in p.alarms:
            out.note(f"! {p.name}: {alarm}", "bold red")
        if p.leftovers:
            out.note(f"{p.name}: {plural(p.leftovers, 'leftover')} to be removed", "yellow")
        for breaker in p.breakers:
            out.note(breaker_text(breaker, now), "yellow")
        for place, why in p.bad_places.items():
            out.note(bad_place_text(place, why), "yellow")


@app.command("offers")
@listing
def list_offers(
    burstd: ApiClient,
    name: ProviderArgument,
    every: Annotated[bool, typer.Option("--all", "-a", help="Also those that no pool can use.")] = False,
) -> None:
    """What a cloud can start and pools can use, cheapest first, and open breakers."""
    from burstd.api.answers.providers import OffersView

    answer = burstd.get_json(f"/providers/{name}/offers", {"all": str(every).lower()})
    burstd.show(OffersView, answer, lambda out, offers: _print_offers(out, offers, every))
    if not answer["ok"]:
        raise typer.Exit(ExitCode.UNREACHABLE)


@app.command("check")
@with_client
def check_provider(
    burstd: ApiClient,
    name: ProviderArgument,
    in_process: Annotated[
        bool, typer.Option("--here", help="Run by burstctl itself, with the settings file, as your user.")
    ] = False,
    file: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Check whether a cloud could launch machines, and say how to fix what is wrong. Creates nothing.

    The daemon does it, with its user's credentials; where none runs, burstctl does, with yours.
    """
    from burstd.api.answers.providers import CheckView

    answer, who = None if in_process else _check_by_daemon(burstd, name), "burstd"
    if answer is None:
        answer, who = _check_in_process(burstd, name, file), f"burstctl itself, from {file}"
    burstd.show(CheckView, answer, lambda out, check: _print_findings(out, check, who))
    if not answer["ok"]:
        raise typer.Exit(ExitCode.NEGATIVE)


@app.command("try")
@with_client
def try_provider(
    burstd: ApiClient,
    name: ProviderArgument,
    spend: Annotated[
        float, typer.Option(min=0.0, help="What the trial may cost at most, in the currency of the provider's prices.")
    ],
    pool: Annotated[str, typer.Option(help="Only what this pool names.", autocompletion=pool_names)] = "",
    file: ConfigOption = DEFAULT_CONFIG,
) -> None:
    """Launch one machine, enter it, end it, and say what was seen and what it cost. Slurm hears nothing of it.

    burstd must not run for this cluster. Run it as root or as burstd's user; Ctrl-C ends the machine.
    """
    from burstd.api.answers.providers import CheckView, FindingView

    if not isfinite(spend):
        burstd.fail(ExitCode.USAGE, "--spend takes an amount of money.")
    settings = read_settings(burstd, file)
    _refuse_beside_a_daemon(burstd, settings)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    findings: list[Finding] = []

    def report_finding(finding: Finding) -> None:
        findings.append(finding)
        if not burstd.json:
            ConsoleOutput().table(("", "*"), [_finding_row(FindingView.from_fields(finding))])

    _run_trial(burstd, settings, name, (Decimal(str(spend)), pool), report_finding)
    answer = CheckView.from_findings(name, findings, None).model_dump(mode="json")
    burstd.show(CheckView, answer, lambda out, check: _print_verdict(out, check.findings))
    if not answer["ok"]:
        raise typer.Exit(ExitCode.NEGATIVE)


@app.command("forget")
@with_client
def forget_machines(
    burstd: ApiClient,
    name: ProviderArgument,
    zone: Annotated[str, typer.Option("--zone", help="Of this zone only.")] = "",
    instance_type: Annotated[str, typer.Option("--type", help="Of this instance type only.")] = "",
) -> None:
    """Forget bad machines of the past: burstd no longer avoids the places where they were."""
    burstd.run_command("POST", f"/providers/{name}/forget", {"zone": zone, "instance_type": instance_type})


def _check_by_daemon(burstd: ApiClient, name: str) -> Any:
    """The daemon's answer; None where no daemon runs."""

    try:
        return burstd.answer_or_exit(
            *burstd.request_status("POST", f"/providers/{name}/check", timeout_s=PROVIDER_CHECK_REQUEST_TIMEOUT_S)
        )
    except DaemonNotRunning:
        return None
    except DaemonUnreachable as error:
        burstd.fail(ExitCode.UNREACHABLE, str(error))


def _check_in_process(burstd: ApiClient, name: str, file: Path) -> Any:
    """The same check, run in this process."""
    from burstd.api.answers.providers import CheckView
    from burstd.domain.plugins.provider import SelfCheck
    from burstd.planner.offers.named_images import explicit_images
    from burstd.settings import PluginRegistry, SettingsError, build_pools, load_settings, resolve_provider
    from burstd.slurm.hostlist import expand

    try:
        settings = load_settings(file, check_files=False)
        if name not in settings.providers:
            known = ", ".join(settings.providers) or "none"
            burstd.fail(ExitCode.NOT_FOUND, f"{file} has no provider {name!r}; there are: {known}.")
        chosen = resolve_provider(settings, PluginRegistry.installed(), name)
        images = explicit_images(name, build_pools(settings, expand).values())
    except SettingsError as error:
        burstd.fail(ExitCode.NEGATIVE, str(error))
    with closing(chosen.plugin.make(name, settings.cluster, chosen.settings)) as provider:
        if not isinstance(provider, SelfCheck):
            burstd.fail(ExitCode.NEGATIVE, f"Provider {name} has no self-check: its kind does not offer one.")
        return CheckView.from_findings(name, provider.check(images), None).model_dump(mode="json")


def _refuse_beside_a_daemon(burstd: ApiClient, settings: Settings) -> None:
    """Ends the program where a burstd works for the cluster: it would end the machine, which it did not launch."""
    cluster, other = settings.cluster, "take a file with another cluster and the same provider (--config)"
    if settings.daemon.standby:
        burstd.fail(
            ExitCode.NEGATIVE,
            f"The cluster {cluster} has two heads, and burstd on the other one would end the machine, which it did not "
            f"launch: {other}, without standby.",
        )
    for client in (burstd, ApiClient(settings.daemon.runtime_dir / "control.sock", as_json=burstd.json)):
        try:
            status, answer = client.request_status("GET", "/status")
        except DaemonNotRunning:
            continue
        except DaemonUnreachable as error:
            burstd.fail(ExitCode.UNREACHABLE, str(error))
        if status != HTTPStatus.OK or answer["daemon"]["cluster"] == cluster:
            burstd.fail(
                ExitCode.NEGATIVE,
                f"burstd works for cluster {cluster}, and ends machines of it that it did not launch. Stop it for the "
                f"trial (systemctl stop burstd: jobs go on), or {other}.",
            )


def _run_trial(
    burstd: ApiClient,
    settings: Settings,
    name: str,
    wanted: tuple[Decimal, str],
    report_finding: Callable[[Finding], None],
) -> None:
    """``wanted``: the most that it may cost, and the pool; empty: any."""
    from burstd.cli.checks.trial import ProviderTrial, TrialGround, choose_offer
    from burstd.settings import PluginRegistry, SettingsError, build_pools, resolve_provider
    from burstd.slurm.hostlist import expand

    spend, only = wanted
    if name not in settings.providers or (only and only not in settings.pools):
        burstd.fail(
            ExitCode.NOT_FOUND, f"The settings have no such {'pool' if name in settings.providers else 'provider'}."
        )
    try:
        chosen = resolve_provider(settings, PluginRegistry.installed(), name)
        pools = {pool: made for pool, made in build_pools(settings, expand).items() if only in ("", pool)}
        with ExitStack() as stack:
            provider = stack.enter_context(closing(chosen.plugin.make(name, settings.cluster, chosen.settings)))
            found = choose_offer(provider.offers(), pools, spend)
            if isinstance(found, Finding):
                report_finding(found)
                return
            ground = TrialGround(settings, provider, Path(stack.enter_context(TemporaryDirectory())))
            request = ground.request(*found, spend)
            ProviderTrial(provider, request, spend, ground.enter, report_finding).run()
    except (SettingsError, BurstdError, OSError) as error:
        burstd.fail(ExitCode.NEGATIVE, str(error))


def _print_findings(out: ConsoleOutput, answer: CheckView, who: str) -> None:
    out.line((f"Provider {answer.provider}", "bold"), f", checked by {who} as user {answer.user}:")
    out.table(("", "*"), [_finding_row(finding) for finding in answer.findings])
    _print_verdict(out, answer.findings)


def _finding_row(finding: FindingView) -> tuple[Text, Text]:
    word, style = _CHECK_STYLES[finding.ok]
    return Text(f"{word:6}", style), _finding_text(finding)


def _print_verdict(out: ConsoleOutput, findings: Sequence[FindingView]) -> None:
    wrong, unclear = (sum(f.ok is state for f in findings) for state in (False, None))
    unclear_text = f", {plural(unclear, 'thing')} could not be checked" if unclear else ""
    if wrong:
        out.line((f"{plural(wrong, 'thing')} not ok{unclear_text}.", "bold red"))
    else:
        out.line(("No fault found" if unclear else "All is well", "bold"), f"{unclear_text}.")


def _finding_text(finding: FindingView) -> Text:
    text = Text.assemble((finding.subject, "bold"), f": {finding.text}")
    return text.append(f"\nRemedy: {finding.remedy}", "italic") if finding.remedy else text


def _print_offers(out: ConsoleOutput, answer: OffersView, every: bool) -> None:
    name = answer.provider
    if not answer.ok:
        known = f"; last known {ago(answer.last_known, answer.now)}" if answer.last_known else ""
        out.line(("down ", "bold red"), f"The offers of {name} cannot be read: {answer.error}{known}")
    elif answer.offers:
        _print_offer_table(out, answer)
        for why in dict.fromkeys(f"{o.instance_type} in {o.zone}: {o.avoided}" for o in answer.offers if o.avoided):
            out.note(why, "yellow")
    else:
        out.line(f"{name} has no offer{'' if every else ' that a pool can use'}.")
    if answer.hidden:
        out.note(f"and {plural(answer.hidden, 'offer')} that no pool can use (--all)", "dim")


def _print_offer_table(out: ConsoleOutput, answer: OffersView) -> None:
    offers, now = answer.offers, answer.now
    columns = [
        ("TYPE", [o.instance_type for o in offers]),
        ("ZONE", [o.zone for o in offers]),
        ("MARKET", [o.market for o in offers]),
        ("CPUS>", [str(o.cpus) for o in offers]),
        ("MEMORY>", [memory_text(o.memory_mib) for o in offers]),
        ("GPUS", [_gpus_text(o) for o in offers]),
        ("ARCH", [o.architecture for o in offers]),
        ("FABRIC", [o.fabric for o in offers]),
        ("DISK>", [memory_text(o.local_disk_gib << 10) if o.local_disk_gib else "" for o in offers]),
        ("PRICE/H>", [money_text(o.price_per_hour, 4) for o in offers]),
        ("FROM", [_price_source_text(o, now) for o in offers]),
        ("BAD>", [f"{o.bad_machines} of {o.machines}" if o.bad_machines else "" for o in offers]),
        ("FOR*", [_availability_text(o, now) for o in offers]),
    ]
    # A column that is empty for every offer is left out.
    columns_used = [(head, cells) for head, cells in columns if any(cells)]
    rows = list(zip(*(cells for _, cells in columns_used), strict=True))
    if out.table([head for head, _ in columns_used], rows, only_if_fits=True):
        return
    for offer, row in zip(offers, rows, strict=True):
        out.line((f"{offer.instance_type} {offer.zone} {offer.market}", "bold"))
        out.note(
            ", ".join(
                f"{head.rstrip('>*').lower()} {cell}"
                for (head, _), cell in list(zip(columns_used, row, strict=True))[3:]
                if cell
            )
        )


def _gpus_text(offer: OfferView) -> str:
    return ", ".join(
        f"{g.type}:{g.count}" + (f" ({memory_text(g.memory_mib)})" if g.memory_mib else "") for g in offer.gpus
    )


def _price_source_text(offer: OfferView, now: datetime) -> str:
    learned = f", {ago(offer.price_at, now)}" if offer.price_at else ""
    address = f", {offer.address_price:f} of it for its address" if offer.address_price else ""
    return f"{offer.price_source}{learned}{address}"


def _availability_text(offer: OfferView, now: datetime) -> str:
    """Pools that may use it, or why none can now."""
    if offer.breakers:
        return "; ".join(breaker_text(b, now, short=True) for b in offer.breakers)
    if offer.pools:
        waiting = [f"waits: pool {pool}: {offer.refused[pool]}" for pool in offer.pools if pool in offer.refused]
        pools = [pool for pool in offer.pools if pool not in offer.refused]
        if offer.avoided and not pools:
            return "no pool, too many machines were bad"
        usable = abbreviated_list(pools, 3) + (", after others" if offer.avoided else "")
        return "; ".join([usable] * bool(pools) + ([] if offer.avoided else waiting))
    return "; ".join(f"not {pool}: {why}" for pool, why in offer.refused.items()) or "no pool names it"
