"""Kubernetes' programs: built once from Debian's source and kept in the cache. ``python -m`` builds them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from providers.sandbox.machine import default_cache, need_root
from tests.lab.kept import LabFailed

_HERE = Path(__file__).parent


def ensure(progress: Callable[[str], None] = lambda _step: None) -> Path:
    """The folder with the programs; installs and builds what is missing. Two who do wait for each other.

    Raises LabFailed, SandboxError.
    """
    need_root("a control plane")
    cache = default_cache()
    cache.mkdir(parents=True, exist_ok=True)
    progress("looking for Kubernetes' programs (built once, some minutes)")
    done = subprocess.run([str(_HERE / "setup.sh"), str(cache)], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise LabFailed("Kubernetes' programs could not be built; why is above")
    return Path(done.stdout.strip()) / "bin"


if __name__ == "__main__":
    ensure(lambda step: print(f"burstd: {step}", flush=True))
