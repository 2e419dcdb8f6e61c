"""pyslurm for the Slurm of Debian forky: built in its root file system, once, the wheel kept in the cache.

pyslurm's releases follow Slurm's, one behind the other; 25.11.2 builds against 26.05 with a few names made good.
``python -m tests.lab.pyslurm_wheel`` builds it: some three minutes.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from providers.sandbox.boxes.boot.description import BindMount
from providers.sandbox.boxes.images.layer import ensure_layer
from providers.sandbox.boxes.images.rootfs import Rootfs, ensure_rootfs, file_lock
from providers.sandbox.boxes.machine import default_cache, remove_tree

RELEASE = "forky"
VERSION = "25.11.2"
FOLDER = "/opt/pyslurm"

# The Slurm that pyslurm's release is for, as slurm_version.h has it: all that its build looks at is this number.
_PRETENDS = "0x190b02"
# 26.05 renamed a function and left an error out; old names of its own are behind SLURM_BACKWARD_COMPAT.
_CFLAGS = (
    "-DSLURM_BACKWARD_COMPAT -Dslurm_free_ctl_conf=slurm_free_conf -DESLURM_ERROR_ON_DESC_TO_RECORD_COPY=2999"
    " -Wno-error=incompatible-pointer-types -O1"
)
_BUILD = f"""set -e
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends gcc libc6-dev python3-dev libslurm-dev >/dev/null
mkdir -p {FOLDER}/include/slurm && cd {FOLDER}
cp /usr/include/slurm/*.h include/slurm/
sed -i -E 's/(#define SLURM_VERSION_NUMBER) 0x[0-9a-f]+/\\1 {_PRETENDS}/' include/slurm/slurm_version.h
python3 -m venv build
pip="build/bin/pip --disable-pip-version-check --quiet --no-cache-dir"
$pip install 'setuptools<81' wheel packaging 'cython>=3.1,<3.3'
$pip download --no-binary :all: --no-deps --no-build-isolation pyslurm=={VERSION}
tar xzf pyslurm-*.tar.gz
export SLURM_LIB_DIR=$(dirname "$(find /usr/lib -name 'libslurm.so' | head -1)")
export SLURM_INCLUDE_DIR={FOLDER}/include PYSLURM_BUILD_JOBS=2 CFLAGS='{_CFLAGS}'
cd pyslurm-{VERSION}
../build/bin/python -m pip wheel --no-build-isolation --no-index --no-deps -w {FOLDER} . >../build.log 2>&1 ||
  {{ grep -E 'error' ../build.log | tail -5; exit 1; }}
cd .. && rm -rf build pyslurm-{VERSION} include
"""


def wheel(rootfs: Rootfs, progress: Callable[[str], None] = lambda _step: None) -> Path:
    """The wheel, built when the cache has none for this root file system's Slurm and Python. Raises SandboxError."""
    store = default_cache() / "wheels"
    store.mkdir(parents=True, exist_ok=True)
    key = hashlib.sha256(f"{_BUILD}\n{_versions(rootfs)}".encode()).hexdigest()[:16]
    folder = store / f"pyslurm-{key}"
    with file_lock(folder.with_suffix(".lock"), lambda: progress("waiting for another builder")):
        if not folder.is_dir():
            progress(f"building pyslurm {VERSION} (about three minutes)")
            # The layer also holds the compiler; only the wheel is kept.
            built = ensure_layer(rootfs, f"pyslurm {key}", ["sh", "-c", _BUILD], progress=progress)
            unfinished = folder.with_suffix(".unfinished")
            remove_tree(unfinished)
            unfinished.mkdir()
            for file in (built / FOLDER.lstrip("/")).glob("*.whl"):
                shutil.copy(file, unfinished)
            unfinished.rename(folder)
            remove_tree(built)
    return next(folder.glob("*.whl"))


def installed(rootfs: Rootfs, progress: Callable[[str], None] = lambda _step: None) -> Path:
    """A layer with pyslurm where Debian's own Python finds it. Raises SandboxError."""
    built = wheel(rootfs, progress)
    script = f"python3 -m zipfile -e {FOLDER}/{built.name} /usr/lib/python3/dist-packages"
    binds = [BindMount(built, f"{FOLDER}/{built.name}")]
    return ensure_layer(rootfs, f"{script} {built.parent.name}", ["sh", "-c", script], binds, progress=progress)


def _versions(rootfs: Rootfs) -> str:
    """The versions that a wheel depends on."""
    said = subprocess.run(
        ["chroot", rootfs.path, "dpkg-query", "-W", "slurmctld", "python3"], capture_output=True, text=True, check=True
    ).stdout
    return re.sub(r"\s+", " ", said)


def main() -> int:
    """Builds the wheel and says where it is."""
    print(wheel(ensure_rootfs(RELEASE, progress=print), progress=print))
    return 0


if __name__ == "__main__":
    sys.exit(main())
