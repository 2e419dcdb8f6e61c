"""Launches pods: one call for each, some at a time. The pod's name is the claim's, so that no second one can be made.

Where one of the name is there, what it is decides: the machine of an earlier try, one that goes, or another's thing.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from burstd.domain.cloud.instance import TAG_CLUSTER, Instance
from burstd.domain.errors import (
    BadRequest,
    CloudUnavailable,
    NotFound,
    OutcomeUnknown,
    ProviderError,
    QuotaExceeded,
    RateLimited,
)
from burstd.domain.plugins.provider import LaunchOutcome, LaunchRequest
from providers.batch_calls import BatchCall
from providers.openshift import labels
from providers.openshift.client.calls import OpenShiftCalls
from providers.openshift.errors import KubernetesAlreadyExists
from providers.openshift.pods import manifest
from providers.openshift.pods.cache import resource_version
from providers.openshift.pods.images import ImageVersions
from providers.openshift.pods.listing import PodListing
from providers.openshift.pods.volumes import ScratchVolumes
from providers.openshift.settings import OpenShiftSettings

KubeObject = dict[str, Any]


class PodLauncher:
    """The launches of one provider."""

    def __init__(
        self,
        settings: OpenShiftSettings,
        calls: OpenShiftCalls,
        listing: PodListing,
        images: ImageVersions,
        scratch: ScratchVolumes,
    ) -> None:
        self._settings = settings
        self._calls = calls
        self._listing = listing
        self._images = images
        self._scratch = scratch

    def launch_pods(self, requests: Sequence[LaunchRequest]) -> list[LaunchOutcome]:
        """The outcome of each, in their order."""
        references = self._references({request.image for request in requests})

        def one(request: LaunchRequest) -> Instance:
            reference = references[request.image]
            if isinstance(reference, ProviderError):
                raise reference
            return self._launch(request, reference)

        results = BatchCall(self._settings.side_by_side).call_each(one, requests)
        return [LaunchOutcome(request.claim_id, one) for request, one in zip(requests, results, strict=True)]

    def _references(self, words: set[str]) -> dict[str, str | ProviderError]:
        found: dict[str, str | ProviderError] = {}
        for word in sorted(words):
            try:
                found[word] = self._images.newest_version(word)
            except ProviderError as error:
                found[word] = error
        return found

    def _launch(self, request: LaunchRequest, image: str) -> Instance:
        pod = manifest.pod_manifest(self._settings, request, image)
        if not self._scratch.wanted:
            return self._listing.put(self._make(request, pod))
        volume = self._scratch.ensure(request)
        try:
            made = self._make(request, pod)
        except ProviderError as error:
            # What was throttled is asked for again at once, and finds it.
            if not isinstance(error, OutcomeUnknown | RateLimited):
                # What cannot be removed now is a leftover, found by its labels.
                with suppress(ProviderError):
                    self._scratch.remove(request.name, volume)
            raise
        with suppress(ProviderError):
            self._scratch.set_owner(request.name, labels.uid_of(made))
        return self._listing.put(made)

    def _make(self, request: LaunchRequest, pod: KubeObject) -> KubeObject:
        try:
            made = self._calls.request_json("POST", self._calls.path_of("pods"), pod, what=f"make pod {request.name}")
            return _checked_pod(made)
        except KubernetesAlreadyExists:
            try:
                return self._earlier(request)
            except NotFound as error:
                name = request.name
                raise OutcomeUnknown(f"pod {name} was there and is gone: it may have been this machine") from error
        except QuotaExceeded as error:
            # Quotas are looked at before names: it may be this very machine that fills it.
            with suppress(NotFound):
                return self._earlier(request)
            raise error from None
        except OutcomeUnknown:
            self._listing.distrust_cache()
            raise

    def _earlier(self, request: LaunchRequest) -> KubeObject:
        """The pod of this name that is there. Raises NotFound; where it cannot be looked at it may be this machine."""
        name = request.name
        try:
            found = self._calls.request_json("GET", self._calls.path_of("pods", name), what=f"look at pod {name}")
        except (NotFound, BadRequest):
            raise
        except ProviderError as error:
            words = f"pod {name} may be there already: {error}"
            raise OutcomeUnknown(words, retry_after_s=error.retry_after_s) from error
        if (
            not labels.belongs_to_cluster(found, request.tags.get(TAG_CLUSTER, ""))
            or labels.claim_of(found) != request.claim_id
        ):
            raise BadRequest(
                f"a pod {name} is there that burstd did not make for this machine: remove it, or rename it"
            )
        if found["metadata"].get("deletionTimestamp"):
            raise OutcomeUnknown(f"pod {name} of this machine is on its way out")
        return found


def _checked_pod(made: KubeObject) -> KubeObject:
    """The answer, if it is one: what came in its place says nothing of what was made."""
    try:
        resource_version(made)
    except CloudUnavailable as error:
        raise OutcomeUnknown(str(error)) from error
    return made
