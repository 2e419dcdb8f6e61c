"""Ends machines, with the disk, the network interface and the address that each was made with."""

from __future__ import annotations

import re
from collections.abc import Sequence

from burstd.domain.errors import BadRequest, NotFound, ProviderError
from providers.azure.calls import AzureCalls
from providers.azure.resources import MACHINES
from providers.azure.settings import AzureSettings
from providers.batch_calls import BatchCall

_NAME = re.compile(r"[A-Za-z0-9][-\w.]{0,63}")


class MachineTerminator:
    """The only one who ends machines."""

    def __init__(self, settings: AzureSettings, calls: AzureCalls) -> None:
        self._settings = settings
        self._calls = calls

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """All are tried; what is gone already is no error; the first error is raised at the end.

        What has not the form of a name is BadRequest, and is never sent.
        """
        ids = list(dict.fromkeys(instance_ids))
        errors: list[ProviderError] = []
        strange = [one for one in ids if not _NAME.fullmatch(one)]
        if strange:
            errors.append(BadRequest(f"no machine of Azure has such a name: {', '.join(strange)}"))
            ids = [one for one in ids if _NAME.fullmatch(one)]
        results = BatchCall(self._settings.side_by_side).call_each(self._delete, ids)
        errors += [one for one in results if isinstance(one, ProviderError)]
        if errors:
            raise errors[0]

    def _delete(self, name: str) -> None:
        """Neither the system's shutdown nor an operation that still runs, or has failed, is waited for."""
        try:
            self._calls.mutate("DELETE", self._calls.in_group(MACHINES, name), f"delete {name}", forceDeletion="true")
        except NotFound:
            return
