"""What can go wrong with the record, each as a sentence with its remedy."""

from __future__ import annotations

from burstd.domain.errors import BurstdError


class StoreError(BurstdError):
    """The record could not be read or written; nothing of what was asked was kept."""


class StoreFull(StoreError):
    """No space is left for the database. It works again as soon as there is."""


class StoreLocked(StoreError):
    """Another process has the database."""


class NotLeading(StoreError):
    """This head does not lead, or cannot be sure that it does: it may change nothing."""


class StoreReadOnly(StoreError):
    """The database may be read, not written."""


class StoreUnavailable(StoreError):
    """The database cannot be opened or reached."""


class StoreBroken(StoreError):
    """The database is damaged, or is not one of burstd's."""


class StoreNewer(StoreError):
    """The database was written by a newer burstd."""


class ChangeRefused(StoreError):
    """The change does not fit the record. It was looked at before anything was written."""


class UnknownClaim(ChangeRefused):
    """No claim has this id."""


class UnknownStaging(ChangeRefused):
    """No job of this id has data on record."""


class UnknownVolume(ChangeRefused):
    """No volume has this id."""


class VolumeExists(ChangeRefused):
    """The user has a volume of this name."""


class StagingExists(ChangeRefused):
    """The job has data on record that is not cleared."""


class StaleState(ChangeRefused):
    """The claim, or the job's data, is not in the state that the change starts from."""


class IllegalTransition(ChangeRefused):
    """The table of transitions (claims', stagings'), or a rule of the record, does not allow it."""


class SlotTaken(ChangeRefused):
    """The slot has a live claim."""
