"""Kubernetes' programs: built once from Debian's source and kept in the cache."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from providers.sandbox.boxes.machine import default_cache, need_root
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
    words = [str(_HERE / "setup.sh"), str(cache)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as setup:
        try:
            said, _ = setup.communicate()
        except BaseException:
            # With the compilers that it has started.
            os.killpg(setup.pid, signal.SIGTERM)
            raise
    if setup.returncode != 0:
        raise LabFailed("Kubernetes' programs could not be built; why is above")
    return Path(said.strip()) / "bin"
