"""Whether the clouds offer machines for each pool: asked of the daemon, or of the clouds where none runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

from burstd.api.answers.providers import OffersView, OfferView
from burstd.cli.session import ApiClient, DaemonNotRunning, DaemonUnreachable
from burstd.domain.cloud.offer import Hardware, Offer, Pool
from burstd.domain.errors import BurstdError
from burstd.domain.slurm.shape import Gres, Shape
from burstd.planner.offers.unfilled import unfilled_rules
from burstd.settings import PluginRegistry, Settings, SettingsError, resolve_provider
from burstd.slurm.config.check import SlurmConfFinding

_NOT_READ = "not read yet"
Catalog = tuple[Offer, ...] | str
"""What a cloud offers, or why that is not known."""


def offer_findings(pools: Sequence[Pool], catalogs: Mapping[str, Catalog]) -> Iterator[SlurmConfFinding]:
    """Pools' rules that no machine can be launched by, and clouds whose offers cannot be read."""
    for name, catalog in catalogs.items():
        if isinstance(catalog, str):
            yield SlurmConfFinding(
                f"provider {name}", "an answer", catalog.rstrip("."), "no machine is launched there",
                f"follow 'burstctl provider check {name}'",
            )  # fmt: skip
    for rule in unfilled_rules(pools, {n: catalog for n, catalog in catalogs.items() if not isinstance(catalog, str)}):
        breaks = f"no machine can be launched for pool {rule.pool}" if rule.pool_is_empty else "it has no effect"
        yield SlurmConfFinding(rule.key, rule.wanted, rule.found, breaks, rule.remedy, not rule.pool_is_empty)


def catalogs_of_daemon(burstd: ApiClient, names: Sequence[str]) -> tuple[dict[str, Catalog], dict[str, str]] | None:
    """By provider what the daemon knows; and why it does not know a provider. None where no daemon runs."""
    catalogs: dict[str, Catalog] = {}
    unknown: dict[str, str] = {}
    try:
        status, answer = burstd.request_status("GET", "/providers")
        down = {p["name"]: p["alarms"] for p in answer["providers"]} if status == 200 else {}
        for name in names:
            status, answer = burstd.request_status("GET", f"/providers/{name}/offers", params={"all": "true"})
            if status != 200:
                unknown[name] = str(answer.get("error", f"The daemon answered {status}."))
                continue
            known = burstd.parse(OffersView, answer)
            # Just after its start it has not read them.
            if alarms := [alarm for alarm in down.get(name, ()) if not alarm.endswith(_NOT_READ)]:
                catalogs[name] = "; ".join(alarms)
            elif known.ok:
                catalogs[name] = tuple(_offer(name, view) for view in known.offers)
            else:
                unknown[name] = f"{known.error}."
    except DaemonNotRunning:
        return None
    except DaemonUnreachable as error:
        return {}, dict.fromkeys(names, str(error).partition("\n")[0])
    return catalogs, unknown


def catalogs_of_clouds(settings: Settings, plugins: PluginRegistry, names: Sequence[str]) -> dict[str, Catalog]:
    """The same, asked of the clouds by this process."""
    found: dict[str, Catalog] = {}
    for name in names:
        try:
            chosen = resolve_provider(settings, plugins, name)
            with closing(chosen.plugin.make(name, settings.cluster, chosen.settings)) as provider:
                found[name] = tuple(provider.offers())
        except SettingsError as error:
            found[name] = "; ".join(str(fault) for fault in error.faults)
        except BurstdError as error:
            found[name] = str(error)
    return found


def _offer(provider: str, view: OfferView) -> Offer:
    gres = tuple(Gres("gpu", gpu.type, gpu.count) for gpu in view.gpus)
    fabric = view.fabric.removeprefix(view.placement).removeprefix("+")
    return Offer(
        provider, view.region, view.zone, view.instance_type, view.market == "spot",
        Shape(view.cpus, view.memory_mib, gres), view.price_per_hour.amount, view.price_per_hour.currency,
        Hardware(view.architecture, fabric=fabric, placement=view.placement),
    )  # fmt: skip
