"""Who is calling, as the kernel says, and what he may do and see."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from burstd.domain.claim import Claim
from burstd.domain.slurm.job import Job
from burstd.domain.snapshot import SlurmView, Snapshot
from burstd.runtime.sockets import PeerCredentials


@dataclass(frozen=True, slots=True)
class Caller:
    """One person at the other end of the socket."""

    user: str
    """His name; ``uid 1234`` where the system knows none."""
    admin: bool
    """An administrator acts and sees everything; others see the site's state and their own jobs."""

    @property
    def actor(self) -> str:
        """As events name him."""
        return f"user:{self.user}"

    def can_see_user(self, user: str) -> bool:
        """True where he may see what belongs to this user."""
        return self.admin or user == self.user

    def can_see_claim_for(self, users: Collection[str]) -> bool:
        """True where he may see all about a claim made for these users: its reasons name every job that it is for."""
        return self.admin or set(users) == {self.user}


class Authorizer:
    """root, burstd's own user and the members of one group are administrators. Asked anew for each request."""

    def __init__(self, admin_group: str, own_uid: int | None = None) -> None:
        self._group = admin_group
        self._own = os.geteuid() if own_uid is None else own_uid

    def caller(self, peer: PeerCredentials) -> Caller:
        """Who it is. The group's members are asked of the system, so that no restart is needed after a change."""
        try:
            account = pwd.getpwuid(peer.uid)
        except KeyError:
            return Caller(f"uid {peer.uid}", self._is_admin(peer, (peer.gid,)))
        groups = (peer.gid, *os.getgrouplist(account.pw_name, account.pw_gid))
        return Caller(account.pw_name, self._is_admin(peer, groups))

    def _is_admin(self, peer: PeerCredentials, groups: Iterable[int]) -> bool:
        if peer.uid in (0, self._own):
            return True
        if not self._group:
            return False
        try:
            wanted = grp.getgrnam(self._group).gr_gid
        except KeyError:
            return False
        return wanted in groups

    def admins_text(self) -> str:
        """Who may act, in words for a refusal."""
        return f"root and members of the group {self._group}" if self._group else "root"


def base_job_id(job_id: str) -> str:
    """The number of the array or het job that an id is part of: ``123_7`` and ``123+1`` give ``123``."""
    return job_id.partition("_")[0].partition("+")[0]


def visible_jobs_filter(caller: Caller, snapshot: Snapshot | None) -> Callable[[Claim], tuple[str, ...]]:
    """A function from a claim to those of its jobs that the caller may see; the queue tells which are his own."""
    if caller.admin:
        return lambda claim: claim.jobs
    own_jobs: set[str] = set()
    if snapshot is not None and isinstance(snapshot.slurm, SlurmView):
        for job in snapshot.slurm.jobs:
            if job.user == caller.user:
                own_jobs |= _job_numbers(job)

    def seen(claim: Claim) -> tuple[str, ...]:
        # Jobs that have left the queue are known by the claim alone, which does not say whose is which.
        if claim.users == (caller.user,):
            return claim.jobs
        return tuple(job for job in claim.jobs if base_job_id(job) in own_jobs)

    return seen


def _job_numbers(job: Job) -> set[str]:
    return {base_job_id(job.id), *filter(None, (job.array_job_id, job.het_job_id))}
