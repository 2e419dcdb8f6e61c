"""Whether anything is left in clouds that costs money: ``python -m burstd.cli.setup.machines_left SETTINGS``.

Lists it and ends with 1 where the record has machines or volumes, or cannot be read. For the removal of the package
and for ``burstctl uninit``.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from burstd.db import StoreReader
from burstd.domain.claim import Claim
from burstd.domain.errors import BurstdError
from burstd.domain.volume import VolumeState
from burstd.runtime.clock import SteadyClock
from burstd.settings import load_settings
from burstd.settings.sections import ProviderSettings

_ENDS = {
    "aws": "aws ec2 terminate-instances --region {region} --instance-ids {id}",
    "azure": "az vm delete --yes --force-deletion true --resource-group {resource_group} --name {id}",
    "google": "gcloud compute instances delete --project {project} --zone {zone} burstd-{claim}",
    "openstack": "openstack server delete {id}",
    "openshift": "kubectl delete pod --namespace {namespace} {id}",
}
"""With the provider's settings."""


@dataclass(frozen=True, slots=True)
class LeftInClouds:
    """A line for each machine and each volume on record that is not gone.

    ``ends``: commands of the clouds' own programs that end the machines.
    """

    machines: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()


def left_in_clouds(settings: Path) -> LeftInClouds:
    """By the record, beside a running burstd too. Raises BurstdError."""
    loaded = load_settings(settings, check_files=False)
    database = loaded.database
    if "://" not in database and not Path(database).exists():
        return LeftInClouds()  # burstd has never run
    with StoreReader.open(database, SteadyClock()) as reader:
        claims = reader.claims()
        ends = (_end(loaded.providers.get(claim.offer.provider), claim) for claim in claims)
        return LeftInClouds(
            tuple(
                f"{claim.slot}: {claim.offer.provider} {claim.instance_id or 'no instance yet'}, {claim.state.value}"
                for claim in claims
            ),
            tuple(
                f"volume {volume.name} of {volume.user}: {volume.provider} {volume.disk_id or 'no disk yet'}"
                for volume in reader.volumes()
                if volume.state is not VolumeState.PLANNED
            ),
            tuple(filter(None, ends)),
        )


def _end(provider: ProviderSettings | None, claim: Claim) -> str:
    """The command that ends a machine; empty: nobody knows it."""
    if provider is None or not claim.instance_id:
        return ""
    unnamed = {"region": "REGION", "namespace": "NAMESPACE", "resource_group": "GROUP", "project": "PROJECT"}
    keys = {**unnamed, **provider.plugin_settings}
    keys |= {"id": claim.instance_id, "claim": claim.id, "zone": claim.offer.zone}
    # To be pasted by root: what a cloud calls a machine is a word there, and nothing more.
    return _ENDS.get(provider.kind, "").format_map({key: shlex.quote(str(value)) for key, value in keys.items()})


def main(settings: Path) -> int:
    """The program."""
    try:
        left = left_in_clouds(settings)
    except BurstdError as error:
        sys.stderr.write(f"burstd's record cannot be read: {error}\n")
        return 1
    lines = (*left.machines, *left.volumes)
    sys.stderr.write("".join(f"  {line}\n" for line in lines))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
