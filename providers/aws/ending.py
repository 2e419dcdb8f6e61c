"""Ends instances, many by one call.

One instance that cannot be ended fails the whole call, and nothing is done: an id that Amazon does not know is left
out, and one that is protected is found by halves, so that it keeps no other alive.
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_TerminateInstances.html
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from burstd.model.errors import AuthFailed, BadRequest, NotFound, ProviderError
from providers.aws.calls import Calls

_BATCH = 500
_ID = re.compile(r"i-(?:[0-9a-f]{8}|[0-9a-f]{17})")


class Ending:
    """The only caller of TerminateInstances. Disks and interfaces are made to go with their machine."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """All are tried; what is gone already is no error; the first error is raised at the end.

        What has not the form of an id was never an instance, and is as good as gone.
        """
        ids = [one for one in dict.fromkeys(instance_ids) if _ID.fullmatch(one)]
        errors: list[ProviderError] = []
        for start in range(0, len(ids), _BATCH):
            self._end(ids[start : start + _BATCH], errors)
        if errors:
            raise errors[0]

    def _end(self, ids: Sequence[str], errors: list[ProviderError]) -> None:
        if not ids:
            return
        try:
            self._calls.tell("ec2", "terminate_instances", InstanceIds=list(ids))
        except NotFound as error:
            gone = set(_ID.findall(str(error)))
            left = [one for one in ids if one not in gone]
            if len(left) < len(ids):
                self._end(left, errors)
            else:
                self._by_halves(ids, errors)
        except (BadRequest, AuthFailed) as error:
            if len(ids) == 1:
                errors.append(error)
            self._by_halves(ids, errors)
        except ProviderError as error:
            errors.append(error)

    def _by_halves(self, ids: Sequence[str], errors: list[ProviderError]) -> None:
        if len(ids) > 1:
            half = len(ids) // 2
            self._end(ids[:half], errors)
            self._end(ids[half:], errors)
