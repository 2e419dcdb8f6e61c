"""Outlooks that a test or a sample gives, instead of those that burstd computes from the queue."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from burstd.domain.slurm.outlook import LeavesForCloud, Outlook, Outlooks


class FixedOutlooks(Outlooks):
    """They are the same whoever leaves."""

    def __init__(self, outlooks: Mapping[str, Outlook]) -> None:
        self._outlooks = dict(outlooks)

    def __getitem__(self, job_id: str) -> Outlook:
        return self._outlooks[job_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._outlooks)

    def __len__(self) -> int:
        return len(self._outlooks)

    def assuming(self, leaves: LeavesForCloud) -> Mapping[str, Outlook]:
        """All of them, each asked about."""
        for job, outlook in self._outlooks.items():
            leaves(job, outlook)
        return self
