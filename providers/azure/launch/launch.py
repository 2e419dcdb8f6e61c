"""Starts machines: one PUT each, by the name of its claim, which makes nothing where that name is taken."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from burstd.domain.cloud.instance import TAG_CLAIM, Instance
from burstd.domain.errors import BadRequest, NotFound, OutcomeUnknown, ProviderError
from burstd.domain.plugins.provider import LaunchOutcome, LaunchRequest
from providers.azure.calls import AzureCalls
from providers.azure.catalog.catalog import AzureCatalog
from providers.azure.errors import AzureAlreadyExists
from providers.azure.launch.images import AzureImages
from providers.azure.launch.machine import machine_body
from providers.azure.listing import MachineListing
from providers.azure.resources import MACHINES, belongs_to_cluster, tags_of
from providers.azure.settings import AzureSettings
from providers.batch_calls import BatchCall


class MachineLauncher:
    """The launches of one provider."""

    def __init__(
        self,
        cluster: str,
        settings: AzureSettings,
        calls: AzureCalls,
        catalog: AzureCatalog,
        images: AzureImages,
        listing: MachineListing,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._calls = calls
        self._catalog = catalog
        self._images = images
        self._listing = listing

    def launch(self, requests: Sequence[LaunchRequest]) -> Sequence[LaunchOutcome]:
        """One call for each, some side by side; those of one claim are one."""
        once = list({request.claim_id: request for request in requests}.values())
        found = BatchCall(self._settings.side_by_side).call_each(self._launch, once)
        done = {
            request.claim_id: LaunchOutcome(request.claim_id, result)
            for request, result in zip(once, found, strict=True)
        }
        return [done[request.claim_id] for request in requests]

    def _launch(self, request: LaunchRequest) -> Instance:
        size = self._catalog.type(request.offer.instance_type)
        image = self._images.reference(request.image)
        body = machine_body(self._settings, request, image, self._admin_key, size)
        path = self._calls.in_group(MACHINES, request.name)
        try:
            said = self._calls.mutate("PUT", path, f"start {request.name}", body, {"If-None-Match": "*"})
        except AzureAlreadyExists:
            return self._earlier(request, path)
        except NotFound as error:
            raise BadRequest(f"{error}: look at subnet, security_group and image") from error
        return self._listing.instance(said)

    def _earlier(self, request: LaunchRequest, path: str) -> Instance:
        """The machine that an earlier call for the same claim made."""
        try:
            said = self._calls.query(path, f"look at {request.name}")
        except NotFound as error:
            raise OutcomeUnknown(f"machine {request.name} was there a moment ago: {error}") from error
        except ProviderError as error:
            raise OutcomeUnknown(str(error), retry_after_s=error.retry_after_s) from error
        if not belongs_to_cluster(said, self._cluster) or tags_of(said).get(TAG_CLAIM) != request.claim_id:
            raise BadRequest(
                f"resource group {self._settings.resource_group} has a machine {request.name} that is not of claim "
                f"{request.claim_id} of cluster {self._cluster}: give the cluster a group of its own"
            )
        return self._listing.instance(said)

    @cached_property
    def _admin_key(self) -> str:
        """Azure wants one; nobody keeps the other half of ours."""
        if self._settings.admin_key:
            return self._settings.admin_key
        from cryptography.hazmat.primitives import serialization  # noqa: PLC0415 - comes with azure-identity
        from cryptography.hazmat.primitives.asymmetric import rsa  # noqa: PLC0415

        public = rsa.generate_private_key(65537, 2048).public_key()
        form = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        return public.public_bytes(*form).decode()
