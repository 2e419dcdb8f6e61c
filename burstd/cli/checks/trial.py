"""One machine of a cloud, launched, proved and ended, with a limit to its cost: ``burstctl provider try``."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import ROUND_UP, Decimal
from functools import partial
from pathlib import Path

from burstd.api.answers.base import Money
from burstd.api.answers.text import duration_text, money_text
from burstd.domain.claim import Cause, Claim, ClaimState
from burstd.domain.cloud.instance import TAG_CLAIM, TAG_CLUSTER, TAG_POOL, Instance, InstanceState
from burstd.domain.cloud.offer import Offer, Pool
from burstd.domain.errors import NodeNotReady, NodeRefused, OutcomeUnknown, ProviderError
from burstd.domain.plugins.provider import (
    ConsoleLog,
    Finding,
    Idempotency,
    LaunchPreparer,
    LaunchRequest,
    Provider,
    ShellProvider,
    VersionedImages,
)
from burstd.node.facts import FactsRequest, read_facts
from burstd.node.ssh.host_keys import HostKeyPolicy
from burstd.node.ssh.key_pair import ensure_ssh_key
from burstd.node.user_data import UserDataValues, render_user_data
from burstd.node.validator import SlurmNodeValidator, ValidatorConfig
from burstd.planner.offers.offers import configured_image
from burstd.runtime.claim_ids import ClaimIds
from burstd.settings import Settings

TAG_TRIAL = "burstd-trial"
"""What tells a machine of a trial from others of its cluster."""
MOST_S = 1800.0
"""No machine is tried for longer, in seconds."""
LEAST_S = 300.0
"""Nor is one launched that may not live so long: it proves nothing."""
END_S = 60.0
"""What is kept of its time for its end, which is paid for as well."""
GONE_S = 600.0
"""How long its end is asked for again."""
LEFT_S = 180.0
"""How long what it leaves may take to vanish by itself."""
POLL_S = 5.0
_BY_HAND = "end them by the cloud's console"
_MEMORY_PART = 0.9
"""The kernel keeps some of a machine's memory for itself."""


def affordable_s(offer: Offer, spend: Decimal) -> float:
    """How long a machine of an offer may live for so much money, in seconds."""
    return min(MOST_S, float(spend / offer.price * 3600)) if offer.price else MOST_S


def choose_offer(offers: Iterable[Offer], pools: Mapping[str, Pool], spend: Decimal) -> tuple[Pool, Offer] | Finding:
    """The cheapest offer that a pool names, with the pool; what is wrong where none may live for LEAST_S."""
    found = [
        (offer.price, offer.id, pool, offer)
        for offer in offers
        for pool in pools.values()
        if any(rule.allows(offer) for rule in pool.rules)
    ]
    if not found:
        return Finding("offers", False, "no pool names an offer of this provider", "see burstctl provider offers --all")
    _, _, pool, offer = min(found, key=lambda one: one[:2])
    if affordable_s(offer, spend) < LEAST_S:
        amount = (offer.price * Decimal(LEAST_S) / 3600).quantize(Decimal("0.0001"), ROUND_UP)
        least = f"{amount} {offer.currency}"
        text = f"the cheapest, {offer.id}, costs {least} for {duration_text(LEAST_S)}, and no more than {spend} may be"
        return Finding("offers", False, text, f"--spend {least.split(maxsplit=1)[0]} or more")
    return pool, offer


class ProviderTrial:
    """One trial. ``report_finding`` hears of each thing that was seen, in order; use it once."""

    def __init__(
        self, provider: Provider, request: LaunchRequest, spend: Decimal, enter: Callable[[Instance], str],
        report_finding: Callable[[Finding], None], *, now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time, pause: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        """``enter`` enters a machine, and says what it is; raises NodeNotReady, NodeRefused, ProviderError."""
        self._provider, self._request, self._spend, self._enter = provider, request, spend, enter
        self._report_finding, self._now, self._wall, self._pause = report_finding, now, wall, pause
        self._began = now()
        self._offer = request.offer
        self._ids: set[str] = set()
        self._launched = False
        """There is a machine, or may be."""
        self.ok = True
        """Nothing was found to be wrong so far."""

    def run(self) -> None:
        """Launches, proves, and ends it, whatever happens; KeyboardInterrupt goes on when it has ended."""
        try:
            self._end_earlier()
            self._began = self._now()
            if self._launch() and (machine := self._wait_until_it_runs()) is not None:
                self._prove(machine)
        except ProviderError as error:
            self._report("trial", False, str(error))
        finally:
            if self._launched:
                self._end()

    @property
    def _until(self) -> float:
        """Then it must begin to end."""
        return self._began + affordable_s(self._offer, self._spend) - END_S

    def _report(self, subject: str, ok: bool | None, text: str, remedy: str = "") -> None:
        self.ok = self.ok and ok is not False
        self._report_finding(Finding(subject, ok, text, remedy))

    def _since(self) -> str:
        return f"after {self._now() - self._began:.0f} s"

    def _end_earlier(self) -> None:
        """A trial that was killed has left its machine."""
        for one in [one for one in self._provider.instances() if TAG_TRIAL in one.tags and not one.state.ended]:
            if self._wall() - one.launched < MOST_S + GONE_S:
                self._report("another trial", None, f"its machine is left alone, it may be under way: {one.id}")
            else:
                self._provider.terminate([one.id])
                self._report("earlier trial", None, f"its machine is ended: {one.id}")

    def _launch(self) -> bool:
        """Whether there is, or may be, a machine."""
        if isinstance(self._provider, LaunchPreparer):
            (prepared,) = self._provider.prepare([self._request])
            if isinstance(prepared, ProviderError):
                self._report("launch", False, f"{self._offer.id}: {prepared}")
                return False
            self._request = prepared
        self._launched = True
        (outcome,) = self._provider.launch([self._request])
        self._offer = outcome.offer or self._offer
        if isinstance(outcome.result, OutcomeUnknown):
            self._report("launch", None, f"the answer was lost, so it is looked for: {outcome.result}")
            return True
        if isinstance(outcome.result, ProviderError):
            self._launched = False
            self._report("launch", False, f"{self._offer.id}: {outcome.result}")
            return False
        self._ids.add(outcome.result.id)
        self._report("launch", True, f"{self._offer.id} gave {outcome.result.id} {self._since()}")
        if self._provider.idempotency is not Idempotency.SETTLE:
            self._launch_again(outcome.result)
        return True

    def _launch_again(self, first: Instance) -> None:
        """As after a crash: there must be no second one."""
        (outcome,) = self._provider.launch([self._request])
        if isinstance(outcome.result, Instance):
            self._ids.add(outcome.result.id)
            same = outcome.result.id == first.id
            self._report("asked again", same, "the same machine" if same else f"another machine: {outcome.result.id}")
        else:
            self._report("asked again", False, str(outcome.result))

    def _mine(self) -> list[Instance]:
        listed = self._provider.instances()
        return [one for one in listed if one.id in self._ids or one.claim_id == self._request.claim_id]

    def _wait_until_it_runs(self) -> Instance | None:
        listed = False
        while self._now() < self._until:
            mine = [one for one in self._mine() if not one.state.ended]
            self._ids.update(one.id for one in mine)
            if mine and not listed:
                listed = True
                self._report("list", len(mine) == 1, f"shows {', '.join(one.id for one in mine)} {self._since()}")
            for one in mine:
                if one.state is InstanceState.ERROR:
                    self._report("boot", False, one.error or "the cloud says that it will never run")
                    return None
                if one.state is InstanceState.RUNNING and one.address:
                    self._report("boot", True, f"{one.id} runs at {one.address} {self._since()}")
                    return one
            self._pause(POLL_S)
        what = "boot" if listed else "list"
        self._report(what, False, f"{'it does not run' if listed else 'no machine of this claim'} {self._since()}")
        return None

    def _prove(self, machine: Instance) -> None:
        why = ""
        while self._now() < self._until:
            try:
                self._report("entry", True, f"{self._enter(machine)} {self._since()}")
            except NodeNotReady as error:
                why = str(error)
            except NodeRefused as error:
                self._report("entry", False, str(error))
                return
            else:
                return
            self._pause(POLL_S)
        self._report("entry", False, f"it could not be entered {self._since()}: {why}")

    def _end(self) -> None:
        """Until the cloud lists it no more, with what belonged to it."""
        try:
            gone = self._terminate()
        except BaseException:
            self._report(
                "end", False, f"machines may run on, and cost: {self._named()}", "end them by the cloud's console"
            )
            raise
        if not gone:
            self._report("end", False, f"still there after {duration_text(GONE_S)}: {self._named()}",
                      "end them by the cloud's console")  # fmt: skip
        elif self._ids:
            self._report("end", True, f"the cloud lists it no more {self._since()}")
            try:
                self._look_for_leftovers()
            except ProviderError as error:
                self._report("leftovers", None, str(error))
            self._count()

    def _named(self) -> str:
        return ", ".join(sorted(self._ids)) or f"{self._request.name} (claim {self._request.claim_id})"

    def _terminate(self) -> bool:
        """Whether all is gone. The list may show a machine late."""
        until, why, taken = self._now() + GONE_S, "", False
        listed_by = self._began + self._provider.settle_s
        while self._now() < until:
            try:
                left = {one.id for one in self._mine() if one.state is not InstanceState.TERMINATED}
                self._ids |= left
                if not left and (taken or not self._ids) and self._now() >= listed_by:
                    return True
                if left or not taken:
                    self._provider.terminate(sorted(left or self._ids))
                    taken = bool(self._ids)
            except ProviderError as error:
                if str(error) != why:
                    why = str(error)
                    self._report("end", None, f"asked for again: {why}")
            self._pause(POLL_S)
        return False

    def _look_for_leftovers(self) -> None:
        until = self._now() + LEFT_S
        while left := [
            one for one in self._provider.leftovers()
            if one.claim_id == self._request.claim_id or one.attached_to in self._ids
        ]:  # fmt: skip
            if self._now() >= until:
                self._provider.remove(left)
                self._report("leftovers", False, f"removed: {', '.join(f'{one.kind} {one.id}' for one in left)}",
                          "tell whoever made the provider")  # fmt: skip
                return
            self._pause(POLL_S)
        self._report("leftovers", True, "none")

    def _count(self) -> None:
        seconds = self._now() - self._began
        cost = len(self._ids) * self._offer.price * Decimal(seconds) / 3600
        most = money_text(Money(amount=cost, currency=self._offer.currency))
        self._report("cost", cost <= self._spend, f"at most {most} for {duration_text(seconds)}, by the offer's price")


def facts_text(offer: Offer, cpus: int | None, memory_mib: int | None, gpus: Sequence[str]) -> str:
    """What a machine has. Raises NodeRefused where that is less than its offer says."""
    shape = offer.shape
    wanted = shape.gpus()
    has = f"{cpus or 0} CPUs, {memory_mib or 0} MiB, {len(gpus)} GPUs"
    if (cpus or 0) < shape.cpus or (memory_mib or 0) < _MEMORY_PART * shape.memory_mib or len(gpus) != wanted:
        raise NodeRefused(f"it has {has}, and its offer says {shape.cpus}, {shape.memory_mib} MiB and {wanted} GPUs")
    return f"it is entered, and has {has},"


class TrialGround:
    """What a trial has of burstd: its key, its user data, its way into machines. ``folder``: of this trial alone."""

    def __init__(self, settings: Settings, provider: Provider, folder: Path) -> None:
        self._settings, self._provider = settings, provider
        # One that burstd has not made so far would not belong to its user.
        own = settings.ssh_key
        self._key = own if own.exists() else folder / "key"
        self._public = ensure_ssh_key(self._key)
        self._folder = folder
        self._claim: Claim | None = None

    def request(self, pool: Pool, offer: Offer, spend: Decimal) -> LaunchRequest:
        """Of a claim whose id bears burstd's mark: burstd ends the machine at its next start, if it lives until then.

        By cloud-init it powers itself off when its time is over. Raises BurstdError, OSError.
        """
        settings, name = self._settings, offer.provider
        claim_id = ClaimIds(self._key.read_bytes()).new_claim_id()
        tags = {TAG_CLUSTER: settings.cluster, TAG_CLAIM: claim_id, TAG_POOL: pool.name, TAG_TRIAL: "1"}
        user_data = render_user_data(
            UserDataValues(
                settings.cluster, pool.name, name, self._public, timezone=settings.node.timezone,
                packages=settings.node.packages, commands=settings.node.commands,
                power_off_after_s=math.ceil(affordable_s(offer, spend)),
            ),
            settings.node.user_data,
            [settings.node.munge_key.read_bytes()] if settings.node.munge_key.exists() else [],
        )  # fmt: skip
        image = configured_image(pool, offer)
        if isinstance(self._provider, VersionedImages):
            image = self._provider.images(image)[0]
        self._claim = Claim(
            claim_id,
            settings.cluster,
            pool.name,
            f"the trial {claim_id}",
            offer,
            Cause.PIN,
            ClaimState.BOOTING,
            0.0,
            0.0,
        )
        machine = f"{settings.cluster}-try-{claim_id[-6:]}".lower().replace("_", "-")
        return LaunchRequest(claim_id, machine, offer, image, user_data, tags, fabric=pool.fabric)

    def enter(self, machine: Instance) -> str:
        """See ProviderTrial."""
        assert self._claim is not None  # noqa: S101 - a request comes first
        node, provider = self._settings.node, self._provider
        name = self._claim.offer.provider
        config = ValidatorConfig(
            ssh_key=self._key, host_keys_dir=self._folder, munge_key=node.munge_key, conf_server="",
            ssh_user=node.ssh_user, ssh_port=node.ssh_port, connect_timeout_s=node.connect_timeout_s,
            host_key_policies={name: HostKeyPolicy(node.host_keys_of.get(name, node.host_keys))},
        )  # fmt: skip
        shells = {name: provider.shell} if isinstance(provider, ShellProvider) else {}
        validator = SlurmNodeValidator(config, slurm_version=tuple, wall=time.time, shells=shells)
        claim = replace(self._claim, instance_id=machine.id, address=machine.address)
        console = partial(provider.console, machine.id) if isinstance(provider, ConsoleLog) else None
        with validator.connect(claim) if shells else validator.ssh_session(claim, console) as session:
            facts = read_facts(session, FactsRequest(node.gpu_devices), wall=time.time)
        return facts_text(claim.offer, facts.cpus, facts.memory_mib, facts.gpu_devices)
