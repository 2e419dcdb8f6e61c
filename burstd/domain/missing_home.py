"""Home directories of users that nodes of a pool do not have: jobs that write there fail when they are launched."""

from __future__ import annotations

from dataclasses import dataclass

HOMES = "homes"
"""The check of new machines; who speaks of such jobs, in remarks, and the cause of their events."""
REMEDY = (
    'add home = { path = "{home}" } to [mounts.trees], let the image mount the directory, or submit from one that is '
    "there"
)


@dataclass(frozen=True, slots=True)
class MissingHome:
    """What was seen on the last new machine of a pool."""

    pool: str
    user: str
    path: str
    slot: str
    """The node that the machine is."""

    @property
    def text(self) -> str:
        """In a sentence without a full stop."""
        return f"home directory {self.path} of {self.user} is not on nodes of pool {self.pool} (seen on {self.slot})"
