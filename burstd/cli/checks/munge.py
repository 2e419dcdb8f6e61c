"""Whether cloud nodes get the munge key that slurmctld's munged works with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from burstd.node.errors import HeadNotReady
from burstd.node.munge import head_credential, is_made_with
from burstd.settings import Settings
from burstd.slurm.config.check import SlurmConfFinding

UNIT_COPY = Path("/run/credentials/burstd.service/munge.key")
"""What systemd read at burstd's start (LoadCredential=), and burstd hands to machines."""
_LOST = "burstd brings this key to each machine over ssh, and slurmctld refuses machines with it: none registers"


def munge_findings(settings: Settings, config: Mapping[str, str]) -> Iterator[SlurmConfFinding]:
    """Nothing where Slurm does without munge, and of keys that this user may not read. ``config``: slurmctld's."""
    if "auth/munge" not in config.get("AuthType", ""):
        return
    node, wanted = settings.node, "the key of the munged that runs here"
    try:
        credential = head_credential(0, str(node.munge_socket or ""))
    except HeadNotReady as error:
        yield SlurmConfFinding("munge", "a credential", str(error).partition(". ")[0], _LOST, "look at munge.service")
        return
    remedies = {
        node.munge_key: f"if {node.munge_key} is right, systemctl restart munge slurmctld burstd; else name the "
        "cluster's key in munge_key of [node]",
        UNIT_COPY: "systemctl restart burstd, which reads the key when it starts",
    }
    for path, remedy in remedies.items():
        try:
            key = path.read_bytes()
        except OSError:
            continue  # rights.py says so of the file
        if not is_made_with(credential, key):
            yield SlurmConfFinding(f"munge key {path}", wanted, "another key", _LOST, remedy)
            return
