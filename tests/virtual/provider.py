"""A provider over a simulated cloud, with every way to fail that a cloud's interface has."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from burstd.domain.cloud.instance import TAG_BATCH, TAG_CLAIM, TAG_CLUSTER, Instance, InstanceState, Leftover
from burstd.domain.cloud.offer import Offer
from burstd.domain.errors import BadRequest, CloudUnavailable, OutcomeUnknown, ProviderError
from burstd.domain.plugins.provider import Idempotency, LaunchOutcome, LaunchRequest, Notice
from tests.virtual.cloud import SimCloud, SimInstance


@dataclass(slots=True)
class Faults:
    """What goes wrong between burstd and the cloud. Counters count down to 0, where all is well again."""

    down: bool = False
    """No call is answered."""
    list_down: bool = False
    """Listings fail, the second half of their pages at that; other calls are answered."""
    refuse: deque[ProviderError] = field(default_factory=deque)
    """Answers to the next requests for a launch, which are not carried out."""
    lost_answers: int = 0
    """Requests for a launch that are carried out, their answers lost."""
    lost_requests: int = 0
    """Requests for a launch that never arrive; that is not known."""
    late_requests: deque[float] = field(default_factory=deque)
    """Requests for a launch that are carried out so many seconds after burstd has given up waiting."""
    terminate_errors: int = 0
    """Calls that end or remove something, and fail."""
    terminate_ignored: int = 0
    """Calls that end or remove something, are answered well, and do nothing."""
    list_lag_s: float = 0.0
    """How long a new instance is missing in listings."""
    omitted: set[str] = field(default_factory=set)
    """Instances that listings leave out."""
    misreported_states: dict[str, InstanceState] = field(default_factory=dict)
    """What listings say of instances instead of the truth."""


class SimProvider:
    """See burstd.domain.plugins.provider.Provider. ``watch`` is told of every instance that is about to be ended."""

    def __init__(
        self,
        cloud: SimCloud,
        cluster: str,
        *,
        idempotency: Idempotency = Idempotency.TOKEN,
        settle_s: float = 10.0,
        watch: Callable[[SimInstance], None] = lambda _: None,
    ) -> None:
        self.name = cloud.name
        self.idempotency = idempotency
        self.settle_s = settle_s
        self.faults = Faults()
        self.cloud = cloud
        self._cluster = cluster
        self._on_terminate = watch
        self._tokens: dict[str, str] = {}

    def offers(self) -> Sequence[Offer]:
        """See Provider."""
        self._check_up()
        return tuple(stock.offer for stock in self.cloud.stocks)

    def launch(self, requests: Sequence[LaunchRequest]) -> Sequence[LaunchOutcome]:
        """See Provider."""
        self._check_up()
        return tuple(LaunchOutcome(r.claim_id, self._outcome(r)) for r in requests)

    def _outcome(self, request: LaunchRequest) -> Instance | ProviderError:
        if request.tags.get(TAG_CLUSTER) != self._cluster or request.tags.get(TAG_CLAIM) != request.claim_id:
            return BadRequest(f"the request for claim {request.claim_id} does not bear its tags")
        faults = self.faults
        if faults.lost_requests:
            faults.lost_requests -= 1
            return OutcomeUnknown("the connection was reset")
        if faults.late_requests:
            clock = self.cloud.clock
            clock.at(clock.now() + faults.late_requests.popleft(), lambda: self._late(request))
            return OutcomeUnknown("the answer did not come in time")
        if faults.refuse:
            return faults.refuse.popleft()
        try:
            made = self._launch(request)
        except ProviderError as error:
            return error
        if faults.lost_answers:
            faults.lost_answers -= 1
            return OutcomeUnknown("the connection was reset")
        return self._listed(made)

    def _late(self, request: LaunchRequest) -> None:
        try:
            self._launch(request)
        except ProviderError:
            return  # Nobody hears the answer.

    def _launch(self, request: LaunchRequest) -> SimInstance:
        known = self._tokens.get(request.claim_id)
        if known is not None and self.idempotency is not Idempotency.SETTLE:
            old = self.cloud.instances[known]
            # A name is free again once its bearer is gone; a token stands for the same machine for ever.
            if self.idempotency is Idempotency.TOKEN or old.ended is None:
                return old
        made = self.cloud.launch(request)
        self._tokens[request.claim_id] = made.id
        return made

    def instances(self) -> Iterator[Instance]:
        """See Provider."""
        self._check_up()
        for place, one in enumerate(self.cloud.listed(self._cluster, self.faults.list_lag_s)):
            if self.faults.list_down and place:
                break
            if one.id not in self.faults.omitted:
                yield self._listed(one)
        self._check_list_up()

    def _listed(self, one: SimInstance) -> Instance:
        return Instance(
            id=one.id,
            provider=self.name,
            state=self.faults.misreported_states.get(one.id, one.state),
            claim_id=one.claim_id,
            tags=one.tags,
            name=one.name,
            zone=one.offer.zone,
            instance_type=one.offer.instance_type,
            spot=one.offer.spot,
            address=one.address,
            launched=one.launched,
            error=one.error,
            batch=one.tags.get(TAG_BATCH, ""),
        )

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """See Provider."""
        self._check_up()
        known = [self.cloud.instances[i] for i in instance_ids if i in self.cloud.instances]
        for one in known:
            self._check_cluster_tag(one.cluster, one.id)
        if self._ends_nothing():
            return
        for one in known:
            if one.ended is None:
                self._on_terminate(one)
                self.cloud.end(one.id)

    def leftovers(self) -> Iterator[Leftover]:
        """See Provider."""
        self._check_up()
        self._check_list_up()
        for thing in list(self.cloud.leftovers.values()):
            if thing.tags.get(TAG_CLUSTER) == self._cluster:
                yield Leftover(thing.kind, thing.id, self.name, thing.tags.get(TAG_CLAIM, ""), thing.attached_to)

    def remove(self, leftovers: Sequence[Leftover]) -> None:
        """See Provider."""
        self._check_up()
        known = [self.cloud.leftovers[left.id] for left in leftovers if left.id in self.cloud.leftovers]
        for thing in known:
            self._check_cluster_tag(thing.tags.get(TAG_CLUSTER, ""), thing.id)
            if thing.attached_to:
                raise BadRequest(f"{thing.id} is attached to {thing.attached_to}")
        if self._ends_nothing():
            return
        for thing in known:
            del self.cloud.leftovers[thing.id]

    @property
    def notice_markets(self) -> frozenset[str]:
        """See Notices."""
        return frozenset({"spot"})

    def notices(self) -> Sequence[Notice]:
        """See Notices."""
        self._check_up()
        return tuple(
            n for n in self.cloud.pending_notices if self.cloud.instances[n.instance_id].cluster == self._cluster
        )

    def acknowledge(self, notices: Sequence[Notice]) -> None:
        """See Notices."""
        self._check_up()
        self.cloud.pending_notices = [n for n in self.cloud.pending_notices if n not in notices]

    def watch_script(self) -> str:
        """See NodeWatch. What is done with it: tests.virtual.machines."""
        return "look"

    def close(self) -> None:
        """See Provider."""

    def _check_up(self) -> None:
        if self.faults.down:
            raise CloudUnavailable(f"{self.name} does not answer")

    def _check_list_up(self) -> None:
        if self.faults.list_down:
            raise CloudUnavailable(f"{self.name} answers the request for a list with 'internal error'")

    def _ends_nothing(self) -> bool:
        if self.faults.terminate_errors:
            self.faults.terminate_errors -= 1
            raise CloudUnavailable(f"{self.name} answers with 'internal error'")
        if self.faults.terminate_ignored:
            self.faults.terminate_ignored -= 1
            return True
        return False

    def _check_cluster_tag(self, cluster: str, what: str) -> None:
        if cluster != self._cluster:
            raise BadRequest(f"{what} does not bear the tag of cluster {self._cluster}; it is not touched")
