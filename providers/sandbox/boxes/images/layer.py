"""Cached layers: what a command changes in a root file system, kept apart from it, to be laid over it in boxes."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from providers.sandbox.boxes.boot.description import ENVIRONMENT, BindMount, BoxDescription, start_init
from providers.sandbox.boxes.errors import BuildFailed, NoSpace
from providers.sandbox.boxes.images.pip_settings import machine_pip
from providers.sandbox.boxes.images.rootfs import Rootfs, file_lock
from providers.sandbox.boxes.machine import default_cache, need_root, need_space, remove_tree
from providers.sandbox.boxes.processes import Process

_LAYER_MIB = 500


def ensure_layer(
    base: Rootfs,
    key: str,
    build: Sequence[str],
    binds: Sequence[BindMount] = (),
    cache: Path | None = None,
    progress: Callable[[str], None] = lambda _step: None,
    over: Sequence[Path] = (),
) -> Path:
    """What ``build`` (an argument list) changes when it runs in ``base``; made once for each ``key`` and base.

    The command runs as root in a chroot on the machine's own network with its name servers, pip settings and proxy
    variables, which are not kept. ``key`` must change with everything that the command reads. ``over``: finished
    layers that lie between base and the new one, the topmost first. Output goes to ``progress``, a line at a time.
    Raises BuildFailed, NoSpace, NotRoot, MissingTool.
    """
    store = (cache or default_cache()) / "layers"
    below = "".join(f"\n{layer.name}" for layer in over)
    name = f"{base.key}-{hashlib.sha256(f'{key}{below}'.encode()).hexdigest()[:16]}"
    target = store / name
    if target.is_dir():
        return target
    need_root("building a layer")
    store.mkdir(parents=True, exist_ok=True)
    with file_lock(store / f"{name}.lock", lambda: progress("waiting for another builder")) as lock:
        if target.is_dir():
            return target
        need_space(store, _LAYER_MIB)
        unfinished = store / f"{name}.unfinished"
        _end_former(unfinished)
        (unfinished / "upper").mkdir(parents=True)
        try:
            _run([*over, base.path], build, binds, unfinished, lock, progress)
            (unfinished / "upper").rename(target)
        finally:
            remove_tree(unfinished)
    return target


def _end_former(unfinished: Path) -> None:
    """Ends what a killed builder may have left running, and removes its leavings."""
    former = Process.load(unfinished / "process.json")
    if former is not None:
        former.kill()
    remove_tree(unfinished)


def _run(
    layers: Sequence[Path],
    build: Sequence[str],
    binds: Sequence[BindMount],
    directory: Path,
    lock: int,
    progress: Callable[[str], None],
) -> None:
    pip = machine_pip(directory)
    names = [BindMount(Path("/etc/resolv.conf").resolve(), "/etc/resolv.conf"), BindMount(Path("/etc/hosts"))]
    description = BoxDescription(
        layers=layers,
        scratch=directory / "root",
        console=directory / "console.log",
        record=directory / "process.json",
        upper=directory / "upper",
        binds=[*names, *pip.binds, *binds],
        main=list(build),
        environment={**ENVIRONMENT, **pip.environment},
    )
    output = directory / "output.log"
    with output.open("wb") as log:
        process = start_init(description, None, log, keep=(lock,))
        with output.open(encoding="utf-8", errors="replace") as said:
            last: list[str] = []
            while True:
                ended = process.poll() is not None
                for line in said:
                    last = [*last[-4:], line.strip()]
                    progress(line.rstrip())
                if ended:
                    break
                _wait_a_little(process)
    if process.returncode != 0:
        why = " | ".join(last) or "it said nothing"
        if "No space left" in why:
            raise NoSpace("the disk filled up while a layer was built", "free some space and try again")
        raise BuildFailed(f"{build[0]} ended with code {process.returncode}: {why}", "mend what it says and try again")


def _wait_a_little(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(0.1)
    except subprocess.TimeoutExpired:
        return
