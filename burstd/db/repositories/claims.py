"""The record: claims, their requests and their events. Jobs' data is in stagings.py, all else in record.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypedDict, Unpack

from sqlalchemy import Connection, delete, insert, select, update
from sqlalchemy.exc import IntegrityError

from burstd.db.codec import claim_columns, claim_field_to_json, claim_from_json, claim_to_json, request_to_text
from burstd.db.errors import IllegalTransition, SlotTaken, StaleState
from burstd.db.events import claim_subject
from burstd.db.reader import select_claim
from burstd.db.repositories.time_repair import TimeRepair
from burstd.db.tables import CLAIM, CLAIM_JOB, CLAIM_USER, LAUNCH_REQUEST, USER_DATA
from burstd.db.writer import chunks
from burstd.domain.claim import TRANSITIONS, Claim, ClaimState
from burstd.domain.cloud.offer import Offer
from burstd.domain.plugins.provider import LaunchRequest


class ClaimFields(TypedDict, total=False):
    """What may change in a claim beside its state; see Claim."""

    offer: Offer
    jobs: tuple[str, ...]
    users: tuple[str, ...]
    accounts: tuple[str, ...]
    reserved: Decimal
    egress: Decimal
    gang: str
    image: str
    instance_id: str
    address: str
    launch_called: float | None
    billed_from: float | None
    billed_until: float | None
    opened: float | None
    attempts: int
    alone: bool
    error: str


class Store(TimeRepair):
    """The only writer. Opened, used and closed by one thread; every method is one transaction, or part of a batch.

    All methods raise StoreError kinds. Refused kinds (UnknownClaim, StaleState, IllegalMove, SlotTaken) are about
    the change; the others about the database.
    """

    def make_claims(self, claims: Sequence[Claim]) -> None:
        """Writes new claims, all or none. Each is PLANNED, with an id never used, for a slot without a live claim.

        Raises SlotTaken, IllegalMove.
        """
        if not claims:
            return
        for claim in claims:
            if claim.state is not ClaimState.PLANNED:
                raise IllegalTransition(f"Claim {claim.id} begins as {claim.state.value}; a claim begins as planned.")
        self._insert(claims)

    def _insert(self, claims: Sequence[Claim]) -> None:
        with self._writing() as connection:
            self._check_new_claims(connection, claims)
            # Through JSON and back, so that the row is what a replay of the log gives.
            plains = [claim_to_json(claim) for claim in claims]
            made = [claim_from_json(plain) for plain in plains]
            try:
                connection.execute(insert(CLAIM), [claim_columns(plain) for plain in plains])
            except IntegrityError as error:
                # Only another writer can bring this about.
                self._spoilt = True
                raise SlotTaken(
                    "A slot got a live claim from another writer at the same moment; look again."
                ) from error
            _index_jobs_and_users(connection, made)
            now = self._clock.now()
            self._log(
                connection,
                *(
                    self._entry(
                        claim_subject(c.id), "", c.state.value, c.reason, c.cause.value, {"claim": plain}, time=now
                    )
                    for c, plain in zip(made, plains, strict=True)
                ),
            )

    def adopt_claim(self, claim: Claim) -> None:
        """Writes a claim whose machine lives already, in whatever state it is. Raises SlotTaken, IllegalMove."""
        self._insert([claim])

    def transition_claim(
        self,
        claim_id: str,
        old: ClaimState,
        new: ClaimState,
        reason: str,
        cause: str = "burstd",
        **fields: Unpack[ClaimFields],
    ) -> Claim:
        """Brings a claim from ``old`` into ``new``, with any fields that change on the way; returns it.

        The first IN_SERVICE sets ``opened``, and GONE ends the bill, where the caller does not say when.
        Raises StaleState, IllegalMove, UnknownClaim.
        """
        with self._writing() as connection:
            claim = self._claim_in_state(connection, claim_id, old, new)
            implied: dict[str, Any] = dict(fields)
            if new is ClaimState.IN_SERVICE and claim.opened is None:
                implied.setdefault("opened", self._clock.now())
            if new is ClaimState.GONE and claim.billed_from is not None and claim.billed_until is None:
                implied.setdefault("billed_until", self._clock.now())
            return self._change(connection, claim, new, reason, cause, implied)

    def update_claim(
        self, claim_id: str, reason: str = "", cause: str = "burstd", **fields: Unpack[ClaimFields]
    ) -> Claim:
        """Changes fields without a change of state; returns the claim. Nothing is written where nothing differs.

        Raises UnknownClaim.
        """
        with self._writing() as connection:
            claim = select_claim(connection, claim_id, lock=True)
            return self._change(connection, claim, claim.state, reason, cause, dict(fields))

    def record_launch_request(
        self, claim_id: str, request: LaunchRequest, reason: str = "", cause: str = "burstd"
    ) -> Claim:
        """To be called before the cloud is: writes down the exact request, and that it is about to be sent.

        From PLANNED the claim moves to LAUNCHING; a claim that is LAUNCHING already is asked for again, which takes
        the very request that is on record. Counts the attempt. Raises IllegalMove, StaleState, UnknownClaim.
        """
        if request.claim_id != claim_id:
            raise IllegalTransition(f"The request is for claim {request.claim_id}, not for {claim_id}.")
        body, digest = request_to_text(request)
        with self._writing() as connection:
            claim = select_claim(connection, claim_id, lock=True)
            known = connection.execute(
                select(LAUNCH_REQUEST.c.body, LAUNCH_REQUEST.c.user_data).where(LAUNCH_REQUEST.c.claim_id == claim_id)
            ).one_or_none()
            if claim.state not in (ClaimState.PLANNED, ClaimState.LAUNCHING):
                raise StaleState(f"Claim {claim_id} is {claim.state.value}; no machine is asked for any more.")
            if known is not None and (known[0], known[1]) != (body, digest):
                raise IllegalTransition(
                    f"Claim {claim_id} was asked for with another request; the one on record must be repeated word "
                    "for word, or the cloud may make a second machine."
                )
            now = self._clock.now()
            if known is None:
                if not connection.execute(select(USER_DATA.c.digest).where(USER_DATA.c.digest == digest)).first():
                    connection.execute(insert(USER_DATA).values(digest=digest, body=request.user_data))
                connection.execute(
                    insert(LAUNCH_REQUEST).values(claim_id=claim_id, body=body, user_data=digest, recorded=now)
                )
            changes = {"attempts": claim.attempts + 1, "launch_called": now, "batch": request.batch}
            return self._change(connection, claim, ClaimState.LAUNCHING, reason or claim.reason, cause, changes)

    def _claim_in_state(self, connection: Connection, claim_id: str, old: ClaimState, new: ClaimState) -> Claim:
        claim = select_claim(connection, claim_id, lock=True)
        if claim.state is not old:
            raise StaleState(f"Claim {claim_id} is {claim.state.value}, not {old.value}; look again.")
        if new not in TRANSITIONS[old]:
            allowed = ", ".join(sorted(s.value for s in TRANSITIONS[old])) or "nothing"
            raise IllegalTransition(f"Claim {claim_id} cannot go from {old.value} to {new.value}; allowed: {allowed}.")
        return claim

    def _change(
        self,
        connection: Connection,
        claim: Claim,
        new: ClaimState,
        reason: str,
        cause: str,
        fields: Mapping[str, Any],
    ) -> Claim:
        """Writes the row and its event; the caller has looked that it may."""
        now = self._clock.now()
        differs = {name: value for name, value in fields.items() if value != getattr(claim, name)}
        if not differs and new is claim.state:
            return claim
        plain = {name: claim_field_to_json(name, value) for name, value in differs.items()}
        moved = (
            {}
            if new is claim.state
            else {"state": new.value, "since": now, "reason": claim_field_to_json("reason", reason)}
        )
        connection.execute(update(CLAIM).where(CLAIM.c.id == claim.id).values(**claim_columns({**plain, **moved})))
        after = claim_from_json({**claim_to_json(claim), **plain, **moved})
        self._book_claim(connection, claim, after)
        if "jobs" in plain or "users" in plain:
            for index in (CLAIM_JOB, CLAIM_USER):
                connection.execute(delete(index).where(index.c.claim_id == claim.id))
            _index_jobs_and_users(connection, [after])
        data = {"set": plain} if plain else {}
        self._log(
            connection,
            self._entry(claim_subject(claim.id), claim.state.value, new.value, reason, cause, data, time=now),
        )
        return after

    @staticmethod
    def _check_new_claims(connection: Connection, claims: Sequence[Claim]) -> None:
        slots: set[str] = set()
        for claim in claims:
            if claim.slot in slots:
                raise SlotTaken(f"Two claims of one batch are for slot {claim.slot}.")
            slots.add(claim.slot)
        for some in chunks(sorted(slots)):
            taken = connection.execute(
                select(CLAIM.c.id, CLAIM.c.slot, CLAIM.c.state).where(
                    CLAIM.c.slot.in_(some), CLAIM.c.state != ClaimState.GONE.value
                )
            ).first()
            if taken is not None:
                raise SlotTaken(f"Slot {taken[1]} has the live claim {taken[0]} ({taken[2]}).")
        for some in chunks([c.id for c in claims]):
            used = connection.execute(select(CLAIM.c.id).where(CLAIM.c.id.in_(some))).scalar()
            if used is not None or len(set(some)) != len(some):
                raise IllegalTransition(f"The claim id {used or some[0]} was used before; ids are never used again.")


def _index_jobs_and_users(connection: Connection, claims: Iterable[Claim]) -> None:
    claims = tuple(claims)
    jobs = [{"job": j, "claim_id": c.id} for c in claims for j in dict.fromkeys(c.jobs)]
    users = [{"user": u, "claim_id": c.id} for c in claims for u in dict.fromkeys(c.users)]
    if jobs:
        connection.execute(insert(CLAIM_JOB), jobs)
    if users:
        connection.execute(insert(CLAIM_USER), users)
