"""Whether anything is left in clouds that costs money: ``python -m burstd.cli.offline.machines_left SETTINGS``.

Lists it and ends with 1 where the record has machines or volumes, or cannot be read. For the removal of the package.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from burstd.db import StoreReader
from burstd.domain.errors import BurstdError
from burstd.runtime.clock import SteadyClock
from burstd.settings import load_settings


def left_in_clouds(reader: StoreReader) -> Iterator[str]:
    """A line for each machine and each volume on record that is not gone."""
    for claim in reader.claims():
        yield f"{claim.slot}: {claim.offer.provider} {claim.instance_id or 'no instance yet'}, {claim.state.value}"
    for volume in reader.volumes():
        if volume.disk_id:
            yield f"volume {volume.name} of {volume.user}: {volume.provider} {volume.disk_id}"


def main(settings: Path) -> int:
    """Reads the record beside a running burstd too."""
    try:
        database = load_settings(settings, check_files=False).database
        if "://" not in database and not Path(database).exists():
            return 0  # burstd has never run
        with StoreReader.open(database, SteadyClock()) as reader:
            lines = list(left_in_clouds(reader))
    except BurstdError as error:
        sys.stderr.write(f"burstd's record cannot be read: {error}\n")
        return 1
    sys.stderr.write("".join(f"  {line}\n" for line in lines))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
