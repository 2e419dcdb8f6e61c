"""What has become of machines: a list of its own, of the whole subscription, that may lag behind.

It is read once a minute, and when a machine has failed. Machines are listed without it too.
https://learn.microsoft.com/azure/virtual-machines/states-billing
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from burstd.domain.errors import (
    InsufficientCapacity,
    NotFound,
    OutcomeUnknown,
    ProviderError,
    QuotaExceeded,
    RateLimited,
)
from providers.azure.calls import AzureCalls, Resource
from providers.azure.errors import kind_for_code
from providers.azure.resources import MACHINES, machine_of, properties_of
from providers.parsing import translate_malformed

_KEPT_S, _FRESH_S = 60.0, 10.0
"""How long the list is good; and where a machine has failed of which it says nothing."""
_OLD_S = 300.0
"""How long what it said is used while it cannot be had."""
_CREATION = re.compile(r"OSProvisioning|VMStartTimedOut", re.IGNORECASE)
"""A machine that is on, and yet will never run."""
Statuses = Sequence[Resource]
"""``InstanceViewStatus`` of one machine: how its last operation ended, and whether it is on."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a machine is in state Failed, in Azure's words. ``harmless``: it runs all the same."""

    text: str
    cause: str = ""
    harmless: bool = False


class MachineStatuses:
    """Of the machines in our resource group."""

    def __init__(self, calls: AzureCalls, clock: Callable[[], float]) -> None:
        self._calls = calls
        self._clock = clock
        self._lock = threading.Lock()
        self._known: Mapping[str, Statuses] = {}
        self._read_at = self._tried_at = float("-inf")

    def known(self, good_for_s: float = _KEPT_S) -> Mapping[str, Statuses]:
        """By machine's name in small letters; none where the list cannot be had for long."""
        with self._lock:
            now = self._clock()
            if now - self._tried_at >= good_for_s:
                try:
                    with translate_malformed():
                        self._known = self._read()
                    self._read_at = now
                except ProviderError:
                    # Whether burstd may read it, ``provider check`` says.
                    if now - self._read_at >= _OLD_S:
                        self._known = {}
                self._tried_at = self._clock()
            return self._known

    def listed_failure(self, name: str) -> Failure | None:
        """Of a machine in state Failed, by its name in small letters; None: the list does not say it."""
        return _failure(self.known().get(name, ())) or _failure(self.known(_FRESH_S).get(name, ()))

    def read_failure(self, name: str) -> Failure | None:
        """Of one whose failure is not in the list yet, in a call; None: it cannot be had now."""
        path = f"{self._calls.in_group(MACHINES, name)}/instanceView"
        try:
            view = self._calls.query(path, f"find out why {name} failed")
        except NotFound:
            return Failure("it has failed, and is gone")
        except ProviderError:
            return None
        statuses = view.get("statuses") or ()
        unsaid = Failure("Azure does not say why it failed", harmless=power_of(statuses) == "running")
        return _failure(statuses) or unsaid

    def _read(self) -> Mapping[str, Statuses]:
        group = f"{self._calls.in_group(MACHINES)}/".lower()
        everybodys = self._calls.pages(
            self._calls.in_subscription(MACHINES), "list what has become of machines", statusOnly="true"
        )
        return {
            machine_of(said["id"]).lower(): (properties_of(said).get("instanceView") or {}).get("statuses") or ()
            for said in everybodys
            if said["id"].lower().startswith(group)
        }


def _failure(statuses: Statuses) -> Failure | None:
    """None: it has not failed, as far as these say."""
    for one in statuses:
        kind, _, state = str(one.get("code", "")).partition("/")
        state, _, code = state.partition("/")
        if (kind.lower(), state.lower()) == ("provisioningstate", "failed") and code:
            text = str(one.get("message") or one.get("displayStatus") or "")
            error = kind_for_code(code, text)
            cause = error.cause if error and not issubclass(error, OutcomeUnknown | RateLimited) else ""
            # The last operation need not be its creation: a disk, an extension, or what somebody else asked for.
            made = not _CREATION.match(code) and error not in (InsufficientCapacity, QuotaExceeded)
            return Failure(f"{text} ({code})", cause, made and power_of(statuses) == "running")
    return None


def power_of(statuses: Statuses) -> str:
    """``running``, ``deallocated`` ...; empty: it is in the making, or nothing is said."""
    codes = [str(one.get("code", "")).lower() for one in statuses]
    if not any(code.startswith(("provisioningstate/succeeded", "provisioningstate/failed")) for code in codes):
        return ""
    return next((code.partition("/")[2] for code in codes if code.startswith("powerstate/")), "")
