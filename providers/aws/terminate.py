"""Ends instances, many by one call.

One instance that cannot be ended fails the whole call: an id that Amazon does not know, or refuses, is left out, so
that it keeps no other alive. Amazon names it in its answer; where it does not, it is found by halves.
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_TerminateInstances.html
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from burstd.domain.errors import AuthFailed, BadRequest, NotFound, ProviderError
from providers.aws.calls import AwsCalls

MAX_IDS = 500
_REFUSALS = 16
"""Calls of a batch that may be refused before its rest is given up: enough to find one instance of 500 by halves."""
_ID = re.compile(r"i-(?:[0-9a-f]{17}|[0-9a-f]{8})")
_IN_TEXT = re.compile(rf"\b{_ID.pattern}\b")


class InstanceTerminator:
    """The only caller of TerminateInstances. Disks and interfaces are made to go with their machine."""

    def __init__(self, calls: AwsCalls) -> None:
        self._calls = calls

    def terminate(self, instance_ids: Sequence[str]) -> None:
        """All are tried; what is gone already is no error; the first error is raised at the end.

        What has not the form of an id is BadRequest, and is never sent.
        """
        ids = list(dict.fromkeys(instance_ids))
        errors: list[ProviderError] = []
        strange = [one for one in ids if not _ID.fullmatch(one)]
        if strange:
            errors.append(BadRequest(f"no instance of EC2 has such an id: {', '.join(strange)}"))
            ids = [one for one in ids if _ID.fullmatch(one)]
        for start in range(0, len(ids), MAX_IDS):
            errors += self._batch(ids[start : start + MAX_IDS])
        if errors:
            raise errors[0]

    def _batch(self, ids: list[str]) -> list[ProviderError]:
        errors: list[ProviderError] = []
        waiting = [ids]
        refusals = 0
        while waiting:
            part = waiting.pop()
            error = self._call(part)
            if error is None:
                continue
            gone = isinstance(error, NotFound)
            refusals += not gone
            if refusals == _REFUSALS or not isinstance(error, NotFound | BadRequest | AuthFailed):
                return [*errors, error]
            named = _named(error, part)
            if not named:
                half = len(part) // 2
                waiting += [part[:half], part[half:]]
                continue
            if not gone:
                errors.append(error)
            rest = [one for one in part if one not in named]
            if rest:
                waiting.append(rest)
        return errors

    def _call(self, ids: list[str]) -> ProviderError | None:
        try:
            self._calls.mutate("ec2", "terminate_instances", InstanceIds=ids)
        except ProviderError as error:
            return error
        return None


def _named(error: ProviderError, ids: Sequence[str]) -> set[str]:
    """Which of them the error is about; empty: it does not say. Our own words for it may be cut short."""
    if len(ids) == 1:
        return set(ids)
    return set(_IN_TEXT.findall(f"{error} {error.__cause__ or ''}")) & set(ids)
