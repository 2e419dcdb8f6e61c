"""The sandbox cloud itself: what a cloud promises and how it breaks. No clock, no network and no box of its own."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from typing import Any, Protocol, TypeVar

from providers.sandbox.cloud.disks import DiskBackend, SandboxDisks
from providers.sandbox.cloud.faults import (
    ANSWER_FAULTS,
    REFUSAL_FAULTS,
    CallSubject,
    FaultKind,
    FaultQueue,
    SandboxFault,
)
from providers.sandbox.cloud.inventory.catalog import SandboxCatalog
from providers.sandbox.cloud.inventory.resources import (
    Announcement,
    AttachedResource,
    BillRow,
    ResourcePage,
    SandboxInstanceState,
    SandboxLaunchRequest,
    SandboxMachine,
)
from providers.sandbox.cloud.inventory.stock import Inventory, has_tags, select_page
from providers.sandbox.cloud.refusals import AnswerLost, RefusalCode, SandboxRefused

PAGE = 100
CLIENT_TIMEOUT_S = 10.0
R = TypeVar("R")
_REFUSAL = {
    FaultKind.CAPACITY: (RefusalCode.CAPACITY, "there is none left"),
    FaultKind.QUOTA: (RefusalCode.QUOTA, "Quota exceeded for instances"),
    FaultKind.BAD_IMAGE: (RefusalCode.BAD_REQUEST, "the image cannot be used"),
    FaultKind.RATE_LIMIT: (RefusalCode.RATE, "too many calls"),
    FaultKind.AUTH: (RefusalCode.AUTH, "the token is not accepted"),
    FaultKind.ERROR: (RefusalCode.INTERNAL, "something broke"),
    FaultKind.UNAVAILABLE: (RefusalCode.UNAVAILABLE, "the service is down"),
}


class MachineBackend(DiskBackend, Protocol):
    """What makes machines run, with their disks. No call waits, none raises; what goes wrong goes to ``Cloud.died``."""

    def start(self, machine: SandboxMachine) -> None:
        """Begins the life of a machine; it never answers where ``machine.hangs``."""
        ...

    def stop(self, machine: SandboxMachine) -> None:
        """Ends it, if it runs; may be repeated."""
        ...

    def console(self, machine: SandboxMachine) -> str:
        """What it has written to its console, empty when there is nothing."""
        ...


def skip_pause(seconds: float) -> None:
    """A pause that does not pass: what takes longer than a client waits is a lost answer, the rest is nothing."""
    if seconds > CLIENT_TIMEOUT_S:
        raise AnswerLost(CLIENT_TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class LaunchCall:
    """One launch call: when (seconds since 1970), for which token, and what came of it: an id or a refusal's code."""

    time: float
    token: str
    name: str
    outcome: str


class SandboxCloud:
    """A cloud. Calls may come from several threads and raise Refused or AnswerLost; what they return is a copy.

    ``now`` gives the time in seconds since 1970. ``pause`` is called for an ordered delay, when the work is done.
    ``changed`` is called after each change, under the lock, so that the state is kept before the answer leaves.
    ``image_fault``: why no machine can be made of an image; empty: nothing is known to be wrong with it.
    """

    def __init__(
        self,
        catalog: SandboxCatalog,
        now: Callable[[], float],
        backend: MachineBackend,
        *,
        pause: Callable[[float], None] = skip_pause,
        changed: Callable[[], None] = lambda: None,
        image_fault: Callable[[str], str] = lambda _image: "",
    ) -> None:
        self.catalog = catalog
        self.calls: Counter[str] = Counter()
        self.launch_calls: list[LaunchCall] = []
        self.now = now
        self._backend = backend
        self._pause = pause
        self._changed = changed
        self._image_fault = image_fault
        self._lock = threading.RLock()
        self._stock = Inventory(catalog)
        self._faults = FaultQueue()
        self._tokens: dict[str, tuple[str, str, float]] = {}
        self.disks = SandboxDisks(
            self._begin, lambda call: self._answer(call, CallSubject(), None), self._find, backend, catalog.capacity,
            now, changed, self._lock,
        )  # fmt: skip

    # What a provider calls.

    def offers(self) -> list[tuple[str, str, bool, Decimal]]:
        """Zone, type, spot and price of all that is sold, whether or not there is capacity."""
        self._begin("offers")
        sold = []
        for zone, names in sorted(self.catalog.capacity.items()):
            for name in sorted(names):
                for spot in (False, True):
                    price = self.catalog.price(name, spot=spot)
                    if price is not None:
                        sold.append((zone, name, spot, price))
        return self._answer("offers", CallSubject(), sold)

    def launch(self, request: SandboxLaunchRequest) -> SandboxMachine:
        """Makes one instance, or gives back the one that the token made."""
        subject = CallSubject(request.zone, request.type, request.name)
        outcome = ""
        try:
            self._begin("launch", subject)
            with self._lock:
                machine = replace(self._launch(request))
            outcome = machine.id
        except SandboxRefused as no:
            outcome = no.code.value
            raise
        finally:
            self.launch_calls.append(LaunchCall(self.now(), request.token, request.name, outcome))
        return self._answer("launch", subject, machine)

    def instances(
        self, tags: Mapping[str, str] | None = None, limit: int = PAGE, marker: str = ""
    ) -> ResourcePage[SandboxMachine]:
        """A page of the instances with these tags, in the order of their making."""
        self._begin("list")
        with self._lock:
            shown = [m for m in self._stock.machines.values() if self._shown(m)]
            found = select_page(shown, lambda m: m.request.tags, tags, limit, marker)
        return self._answer("list", CallSubject(), found)

    def instance(self, instance_id: str) -> SandboxMachine:
        """One instance."""
        self._begin("get")
        with self._lock:
            machine = self._find(instance_id)
            if not self._shown(machine):
                raise SandboxRefused(RefusalCode.NOT_FOUND, f"there is no instance {instance_id}")
            machine = replace(machine)
        return self._answer("get", _subject(machine), machine)

    def terminate(self, instance_id: str) -> None:
        """Ends an instance, with its volume and port; one that has ended may be ended again while it is shown."""
        with self._lock:
            known = self._stock.machines.get(instance_id)
            subject = CallSubject() if known is None else _subject(known)
        self._begin("terminate", subject)
        with self._lock:
            machine = self._find(instance_id)
            if machine.state not in (SandboxInstanceState.STOPPING, SandboxInstanceState.TERMINATED):
                self._stop(machine)
                self._changed()
        self._answer("terminate", subject, None)

    def console(self, instance_id: str) -> str:
        """What an instance has written to its console."""
        self._begin("console")
        with self._lock:
            machine = self._find(instance_id)
            text = self._backend.console(machine)
        return self._answer("console", _subject(machine), text)

    def list_resources(
        self, kind: str, tags: Mapping[str, str] | None = None, limit: int = PAGE, marker: str = ""
    ) -> ResourcePage[AttachedResource]:
        """A page of the volumes or ports with these tags. ``kind``: ``volume`` or ``port``."""
        self._begin(f"{kind}s")
        with self._lock:
            some = [p for p in self._stock.resources.values() if p.kind == kind]
            found = select_page(some, lambda p: p.tags, tags, limit, marker)
        return self._answer(f"{kind}s", CallSubject(), found)

    def remove(self, kind: str, part_id: str) -> None:
        """Removes a volume or port that belongs to no instance any more."""
        self._begin("remove")
        with self._lock:
            part = self._stock.resources.get(part_id)
            if part is None or part.kind != kind:
                raise SandboxRefused(RefusalCode.NOT_FOUND, f"there is no {kind} {part_id}")
            if part.attached_to:
                raise SandboxRefused(RefusalCode.IN_USE, f"the {kind} {part_id} belongs to {part.attached_to}")
            del self._stock.resources[part_id]
            self._changed()
        self._answer("remove", CallSubject(), None)

    def quota(self) -> tuple[int, int]:
        """Instances that may be held at once, and those that are."""
        self._begin("quota")
        with self._lock:
            used = len(self._stock.counted())
        return self._answer("quota", CallSubject(), (self.catalog.quota, used))

    def supplies(self) -> tuple[dict[str, str], int]:
        """The images, with what is wrong with each, and how many addresses are free."""
        self._begin("supplies")
        with self._lock:
            free = self._stock.free_addresses()
        found = {image: self._image_fault(image) for image in sorted(self.catalog.images)}
        return self._answer("supplies", CallSubject(), (found, free))

    def notices(self, tags: Mapping[str, str] | None = None) -> list[Announcement]:
        """What was announced of instances with these tags, and was not acknowledged."""
        self._begin("notices")
        with self._lock:
            some = [m for m in self._stock.alive() if has_tags(m.request.tags, tags)]
            found = [said for m in some for said in m.announcements() if said.receipt not in m.heard]
        return self._answer("notices", CallSubject(), found)

    def acknowledge(self, receipts: Iterable[str]) -> None:
        """These announcements need not be told again; unknown ones are no error."""
        self._begin("acknowledge")
        with self._lock:
            for receipt in receipts:
                machine = self._stock.machines.get(receipt.partition("/")[0])
                if machine is not None and receipt not in machine.heard:
                    machine.heard += (receipt,)
            self._changed()
        self._answer("acknowledge", CallSubject(), None)

    def notice_at(self, address: str) -> Announcement | None:
        """What an instance may know of itself: the worst that was announced, by the address that it asks from."""
        with self._lock:
            found = [s for m in self._stock.alive() if m.address == address for s in m.announcements()]
        return found[-1] if found else None

    # What the lab orders and reads. None of it is counted or goes wrong.

    def interrupt(self, instance_id: str, notice_s: float = 0.0) -> None:
        """Takes an instance back, ``notice_s`` seconds from now."""
        with self._lock:
            self._find(instance_id).interrupted_at = self.now() + notice_s
            self.advance()
            self._changed()

    def recommend_rebalance(self, instance_id: str) -> None:
        """Says of an instance that it may be taken back soon."""
        with self._lock:
            self._find(instance_id).hinted = True
            self._changed()

    def report_death(self, instance_id: str, why: str) -> None:
        """A machine could not be started, or has ended by itself. It is kept, in the state error."""
        with self._lock:
            machine = self._stock.machines.get(instance_id)
            if machine is not None and machine.state is SandboxInstanceState.RUNNING and not machine.lies:
                machine.state, machine.error, machine.ended = SandboxInstanceState.ERROR, why, self.now()
                self._changed()

    def inject_fault(self, fault: SandboxFault) -> SandboxFault:
        """Orders a fault; returns it with its id."""
        with self._lock:
            taken = self._faults.add(fault)
            self._changed()
            return taken

    def pending_faults(self) -> tuple[SandboxFault, ...]:
        """The faults that are still to come."""
        with self._lock:
            return self._faults.pending()

    def cancel_fault(self, fault_id: str | None = None) -> None:
        """Takes one order back, or all."""
        with self._lock:
            self._faults.remove(fault_id)
            self._changed()

    def bill(self, tags: Mapping[str, str] | None = None) -> list[BillRow]:
        """What every instance has cost so far, those that ended included."""
        now = self.now()
        rows = []
        for machine in self.machines():
            request = machine.request
            if has_tags(request.tags, tags):
                place = (request.zone, request.type, request.spot, request.tags)
                times = (machine.created, machine.started, machine.ended, machine.seconds(now))
                rows.append(BillRow(machine.id, request.name, *place, *times, machine.price))
        return rows

    def machines(self) -> list[SandboxMachine]:
        """All instances ever made."""
        with self._lock:
            self.advance()
            return [replace(m) for m in self._stock.machines.values()]

    # Time.

    def advance(self) -> float | None:
        """Does all that is due; returns when the next thing will be (seconds since 1970), None where there is none."""
        with self._lock:
            now = self.now()
            done = [self._step(machine, now) for machine in self._stock.alive()]
            for machine in self._stock.machines.values():
                if machine.state is SandboxInstanceState.TERMINATED and not self._shown(machine):
                    self._stock.forget_user_data(machine)
            if any(done):
                self._changed()
            return min((moment for machine in self._stock.alive() for moment in _moments(machine)), default=None)

    def _step(self, machine: SandboxMachine, now: float) -> bool:
        """Does what is due for one machine, in the order in which it happens."""
        before = (machine.state, machine.dies_at)
        if machine.state is SandboxInstanceState.PENDING and now >= machine.runs_at:
            self._run(machine)
        if machine.state is SandboxInstanceState.RUNNING and machine.dies_at is not None and now >= machine.dies_at:
            machine.dies_at = None
            self._backend.stop(machine)
        taken = machine.interrupted_at
        if (
            taken is not None
            and now >= taken
            and machine.state in (SandboxInstanceState.PENDING, SandboxInstanceState.RUNNING)
        ):
            machine.error = "spot capacity was taken back"
            self._stop(machine)
        if machine.state is SandboxInstanceState.STOPPING and machine.ends_at is not None and now >= machine.ends_at:
            self._end(machine)
        return before != (machine.state, machine.dies_at)

    def _run(self, machine: SandboxMachine) -> None:
        if machine.fails:
            machine.state, machine.error = SandboxInstanceState.ERROR, "no host could start it"
            return
        machine.state, machine.started = SandboxInstanceState.RUNNING, machine.runs_at
        self._backend.start(machine)

    def _stop(self, machine: SandboxMachine) -> None:
        machine.state = SandboxInstanceState.STOPPING
        machine.ends_at = self.now() + self.catalog.stop_s
        if self.catalog.stop_s <= 0:
            self._end(machine)

    def _end(self, machine: SandboxMachine) -> None:
        self._backend.stop(machine)
        machine.state = SandboxInstanceState.TERMINATED
        if machine.ended is None:
            machine.ended = machine.ends_at
        self.disks.release(machine.id)
        for part in self._stock.resources_of(machine):
            leak = FaultKind.LEAK_VOLUME if part.kind == "volume" else FaultKind.LEAK_PORT
            if self._faults.take_matching((leak,), "terminate", _subject(machine)):
                part.attached_to = ""
            else:
                del self._stock.resources[part.id]

    # What all calls share.

    def _launch(self, request: SandboxLaunchRequest) -> SandboxMachine:
        if not request.token:
            raise SandboxRefused(RefusalCode.BAD_REQUEST, "a launch needs a token")
        fingerprint = hashlib.sha256(json.dumps(asdict(request), sort_keys=True).encode()).hexdigest()
        now = self.now()
        self._tokens = {t: made for t, made in self._tokens.items() if now - made[2] < self.catalog.token_s}
        known = self._tokens.get(request.token)
        if known is not None:
            if known[0] != fingerprint:
                raise SandboxRefused(RefusalCode.TOKEN_REUSED, "this token was used for another request")
            return self._stock.machines[known[1]]
        subject = CallSubject(request.zone, request.type, request.name)
        price = self._stock.price_of(request)
        machine = self._stock.make(
            request, price, now, lambda kind: self._faults.take_matching((kind,), "launch", subject)
        )
        self._tokens[request.token] = (fingerprint, machine.id, now)
        self.advance()
        self._changed()
        return machine

    def _begin(self, call: str, subject: CallSubject | None = None) -> None:
        with self._lock:
            self.calls[call] += 1
            fault = self._faults.take_matching(REFUSAL_FAULTS, call, subject or CallSubject())
            self.advance()
        if fault is not None:
            raise SandboxRefused(*_REFUSAL[fault.kind], retry_after_s=fault.seconds)

    def _answer(self, call: str, subject: CallSubject, result: R) -> R:
        with self._lock:
            fault = self._faults.take_matching(ANSWER_FAULTS, call, subject)
        if fault is not None and fault.kind is FaultKind.LOSE_ANSWER:
            raise AnswerLost(fault.seconds)
        if fault is not None:
            self._pause(fault.seconds)
        return result

    def _find(self, instance_id: str) -> SandboxMachine:
        machine = self._stock.machines.get(instance_id)
        if machine is None or (machine.state is SandboxInstanceState.TERMINATED and not self._shown(machine)):
            raise SandboxRefused(RefusalCode.NOT_FOUND, f"there is no instance {instance_id}")
        return machine

    def _shown(self, machine: SandboxMachine) -> bool:
        now = self.now()
        if machine.state is SandboxInstanceState.TERMINATED and machine.ended is not None:
            return now - machine.ended < self.catalog.ended_shown_s
        return now - machine.created >= self.catalog.list_lag_s

    # Keeping.

    def to_json(self) -> dict[str, Any]:
        """All state, as plain values."""
        with self._lock:
            return {
                "stock": self._stock.to_json(),
                "faults": [asdict(fault) for fault in self._faults.pending()],
                "faults_made": self._faults.made,
                "tokens": {token: list(made) for token, made in self._tokens.items()},
                "calls": dict(self.calls),
                "launch_calls": [asdict(call) for call in self.launch_calls],
                "disks": self.disks.to_json(),
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        """The inverse of ``to_json``, in place. The backend is asked for nothing."""
        with self._lock:
            self._stock.restore(state["stock"])
            orders = [
                SandboxFault(**{**f, "kind": FaultKind(f["kind"]), "calls": tuple(f["calls"])}) for f in state["faults"]
            ]
            self._faults = FaultQueue(orders, state["faults_made"])
            self._tokens = {token: (made[0], made[1], made[2]) for token, made in state["tokens"].items()}
            self.calls = Counter(state["calls"])
            self.launch_calls = [LaunchCall(**call) for call in state["launch_calls"]]
            if "disks" in state:
                self.disks.restore(state["disks"])


def _subject(machine: SandboxMachine) -> CallSubject:
    return CallSubject(machine.request.zone, machine.request.type, machine.request.name)


def _moments(machine: SandboxMachine) -> list[float]:
    """When something is due for a machine."""
    if machine.state is SandboxInstanceState.PENDING:
        moments = [machine.runs_at, machine.interrupted_at]
    elif machine.state is SandboxInstanceState.RUNNING:
        moments = [machine.dies_at, machine.interrupted_at]
    elif machine.state is SandboxInstanceState.STOPPING:
        moments = [machine.ends_at]
    else:
        moments = []
    return [moment for moment in moments if moment is not None]
