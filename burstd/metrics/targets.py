"""The nodes in the cloud as targets of Prometheus' file_sd: which exporters to ask, and what their series are of.

Format: https://prometheus.io/docs/prometheus/latest/configuration/configuration/#file_sd_config
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from burstd.domain.claim import Claim, ClaimState
from burstd.metrics.families import label_value
from burstd.runtime.precedence import UNDISTURBED, DecisionPrecedence

RUNNING = frozenset({ClaimState.IN_SERVICE, ClaimState.DRAINING})
"""States of claims whose node is open, or closes and may have jobs still."""
_NODES_AT_A_TIME = 250
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW


def targets_text(claims: Iterable[Claim], ports: Sequence[int], precedence: DecisionPrecedence = UNDISTURBED) -> str:
    """The file: each node that runs with an address for each port; the price is of an hour, in the offer's currency."""
    lines = []
    for claim in precedence.slices(sorted(claims, key=lambda c: c.slot), _NODES_AT_A_TIME):
        if claim.state in RUNNING and claim.address:
            host = f"[{claim.address}]" if ":" in claim.address else claim.address
            offer = claim.offer
            labels = {
                "node": claim.slot, "pool": claim.pool, "claim": claim.id, "provider": offer.provider,
                "region": offer.region, "zone": offer.zone, "type": offer.instance_type, "market": offer.market,
                "price": f"{offer.price:f}",
            }  # fmt: skip
            group = {
                "targets": [f"{host}:{port}" for port in ports],
                "labels": {name: label_value(value) for name, value in labels.items()},
            }
            lines.append(json.dumps(group))
    return "[\n" + ",\n".join(lines) + "\n]\n" if lines else "[]\n"


class TargetsFile:
    """One file, written where the nodes change, by rename: Prometheus never reads half of it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written: object = None
        """What the file was made from."""
        self.alarm = ""
        """Why the file is not as it should be; empty: it is."""

    def update(
        self, claims: Sequence[Claim], ports: Sequence[int], precedence: DecisionPrecedence = UNDISTURBED
    ) -> None:
        """Brings the file up to date. Where it cannot be written ``alarm`` says why, and the next call tries again."""
        nodes = ports, [(c.id, c.slot, c.pool, c.address) for c in claims if c.state in RUNNING]
        if nodes == self._written:
            return
        unfinished = self._path.with_name(f".{self._path.name}.new")
        try:
            descriptor = os.open(unfinished, _WRITE, 0o644)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                # Whatever the umask: Prometheus is another user.
                os.fchmod(descriptor, 0o644)
                file.write(targets_text(claims, ports, precedence))
            unfinished.replace(self._path)
        except OSError as error:
            self.alarm = (
                f"the targets for Prometheus cannot be written to {self._path} ([metrics] file_sd): {error.strerror}"
                f"{self._remedy(error)}; Prometheus goes on with the nodes of the last file"
            )
            return
        self._written, self.alarm = nodes, ""

    def _remedy(self, error: OSError) -> str:
        folder = self._path.parent
        if error.errno == errno.ENOENT:
            return f" (as root: install -d -o {os.geteuid()} -m 755 {folder})"
        if error.errno == errno.EROFS:
            return f" (burstd's unit needs ReadWritePaths=-{folder}: systemctl edit burstd, and a restart)"
        return ""
