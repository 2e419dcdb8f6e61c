"""Ends instances, one call each: their disks and addresses go with them.

https://cloud.google.com/compute/docs/reference/rest/v1/instances/delete
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

from burstd.domain.errors import BadRequest, NotFound, ProviderError
from providers.batch_calls import BatchCall
from providers.google.calls import GoogleCalls
from providers.google.listing import parse_id
from providers.google.settings import GoogleSettings


class InstanceTerminator:
    """The only one who ends instances. ``ended`` hears of each that Google ends, or does not know."""

    def __init__(self, settings: GoogleSettings, calls: GoogleCalls, ended: Callable[[str], None]) -> None:
        self._settings = settings
        self._calls = calls
        self._ended = ended

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """All are tried; what is gone already is no error; the first error is raised at the end."""
        ids = list(dict.fromkeys(instance_ids))
        results = BatchCall(self._settings.side_by_side).call_each(self._delete, ids)
        errors = [one for one in results if isinstance(one, ProviderError)]
        if errors:
            raise errors[0]

    def _delete(self, instance_id: str) -> None:
        """By its number, which no later instance of the name has."""
        place = parse_id(instance_id)
        if place is None:
            raise BadRequest(f"no instance of Google's has such an id: {instance_id}")
        with suppress(NotFound):
            self._calls.mutate(
                "compute.instances.delete", f"delete instance {instance_id}", project=self._settings.project,
                zone=place[0], instance=place[1],
            )  # fmt: skip
        self._ended(instance_id)
