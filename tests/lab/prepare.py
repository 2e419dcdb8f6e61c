"""Makes what the tests on real control planes run on, unless it is there: OpenStack's first, then Kubernetes'."""

from __future__ import annotations

import signal
import sys

from tests.lab.kubernetes import programs
from tests.lab.openstack import template


def main() -> None:
    """Ends, with what it has begun, when it is told to."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    for ensure in (template.ensure, programs.ensure):
        ensure(lambda step: print(f"burstd: {step}", flush=True))


if __name__ == "__main__":
    main()
