"""What is looked up for a request before anything is written down: image, types, subnets, reservation."""

from __future__ import annotations

from burstd.domain.cloud.offer import Offer
from burstd.domain.errors import BadRequest, InsufficientCapacity
from burstd.domain.plugins.provider import LaunchRequest
from providers.aws.catalog.catalog import AwsCatalog, Ec2InstanceType, NetworkAdapter
from providers.aws.launch.images import AwsImage, AwsImages
from providers.aws.launch.recipe import CapacityPool, LaunchSpec
from providers.aws.launch.template import USER_DATA_BYTES
from providers.aws.settings import AwsSettings

MAX_POOLS = 30
"""Most to one call; beyond that a fleet only takes longer to answer."""


class LaunchLookups:
    """Makes them of requests. Reads only."""

    def __init__(self, settings: AwsSettings, catalog: AwsCatalog, images: AwsImages) -> None:
        self._settings = settings
        self._catalog = catalog
        self._images = images

    def look_up(self, request: LaunchRequest) -> LaunchSpec:
        """Raises BadRequest where it can never be served, InsufficientCapacity where its reservation is not open, other
        errors where nothing can be looked up now.
        """
        size = len(request.user_data.encode())
        if size > USER_DATA_BYTES:
            raise BadRequest(f"the user data has {size} bytes, EC2 takes {USER_DATA_BYTES}: shorten node.user_data")
        image = self._images.find_image(request.image)
        kind, pool = self._pool(request.offer)
        _fits(kind, image)
        efa = kind.efa if (request.gang or request.fabric == "efa") and self._settings.efa else ()
        reservation = self._catalog.reservation(kind.name, request.offer.zone)
        if reservation is not None and not request.offer.spot:
            if not reservation.open:
                raise InsufficientCapacity(f"capacity reservation {reservation.id} has ended, or has not begun")
            return LaunchSpec(request, image, (pool,), efa, reservation, grouped=False)
        grouped = bool(request.gang) and self._settings.placement_groups and kind.cluster_groups
        found = {(kind.name, request.offer.zone): pool}
        for other in request.others:
            if len(found) == MAX_POOLS:
                break
            other_pool = self._other(other, request, image, efa, grouped=grouped)
            if other_pool is not None:
                found.setdefault((other.instance_type, other.zone), other_pool)
        return LaunchSpec(request, image, tuple(found.values()), efa, grouped=grouped)

    def _pool(self, offer: Offer) -> tuple[Ec2InstanceType, CapacityPool]:
        kind = self._catalog.type(offer.instance_type)
        if kind is None:
            raise BadRequest(
                f"{self._settings.region} has no instance type '{offer.instance_type}' that instance_types allows"
            )
        subnet = self._catalog.subnet(offer.zone)
        if not subnet:
            raise BadRequest(f"no subnet of the settings is in zone '{offer.zone}': add one to subnets")
        return kind, CapacityPool(offer, subnet)

    def _other(
        self, other: Offer, request: LaunchRequest, image: AwsImage, efa: tuple[NetworkAdapter, ...], *, grouped: bool
    ) -> CapacityPool | None:
        """None where it cannot be given by the same call."""
        if other.spot != request.offer.spot:
            return None
        try:
            kind, pool = self._pool(other)
            _fits(kind, image)
        except BadRequest:
            return None
        if (efa and kind.efa != efa) or (grouped and not kind.cluster_groups):
            return None
        if not other.spot and self._catalog.reservation(kind.name, other.zone) is not None:
            return None
        return pool


def _fits(kind: Ec2InstanceType, image: AwsImage) -> None:
    if kind.architecture and image.architecture and kind.architecture != image.architecture:
        raise BadRequest(
            f"image {image.id} is for {image.architecture}, {kind.name} is {kind.architecture}: "
            "name an image for it in the pool's offers"
        )
