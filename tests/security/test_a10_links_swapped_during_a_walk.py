"""Another user, who may write where a hand works, swaps directories and files for links: it leads nowhere."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from burstd.transfer.privsep.client import UserWorkerError, start_user_worker
from tests.transfer.ground import OTHER, USER, give_to_user, root_only, user_folder

pytestmark = [pytest.mark.boxes, root_only]
TURNS, REFUSED = 100, 5
"""Of the hand at least, while the other one swaps as fast as it can; and how often that shows."""


@contextmanager
def racing(act: Callable[[], None]) -> Iterator[None]:
    """Does it over and over, as another user, in a process of its own."""
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setresgid(OTHER, OTHER, OTHER)
            os.setresuid(OTHER, OTHER, OTHER)
            while True:
                with suppress(OSError):
                    act()
        finally:
            os._exit(1)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def swap(place: Path, name: str, target: Path) -> None:
    """A directory or file for a link, and back. Where the hand has made it anew meanwhile, the next swap takes that."""
    aside = place / f"aside-{time.monotonic_ns()}"
    (place / name).rename(aside)
    (place / name).symlink_to(target)
    (place / name).unlink()
    aside.rename(place / name)


@pytest.fixture
def place() -> Iterator[Path]:
    """``open``: where all may write and rename; ``own``: the user's, closed."""
    with user_folder() as made:
        for name in ("open/sub", "own/deep"):
            (made / name).mkdir(parents=True)
        (made / "own/secret").write_text("secret")
        (made / "own/secret").chmod(0o600)
        give_to_user(made)
        for name in ("open", "open/sub"):
            (made / name).chmod(0o777)
        (made / "own").chmod(0o700)
        yield made


def owned(place: Path) -> list[tuple[str, int, int]]:
    found = [place / "own", *sorted((place / "own").rglob("*"))]
    return [(p.name, p.lstat().st_mode, p.lstat().st_nlink) for p in found]


def turns(act: Callable[[int], object]) -> Iterator[int]:
    """Does it until it was refused often enough to say that somebody raced; yields how often it was refused."""
    refused = turn = 0
    until = time.monotonic() + 60
    while (turn < TURNS or refused < REFUSED) and time.monotonic() < until:
        turn += 1
        try:
            act(turn)
        except UserWorkerError as error:
            refused += error.errno != 0
        yield refused


def test_writing_goes_through_no_link_that_is_swapped_in(place: Path) -> None:
    before, root = owned(place), str(place / "open")

    def write(turn: int) -> None:
        worker.make_directories(root, ["sub", f"sub/d{turn}"])
        ((new, fd),) = worker.create_files(root, [f"sub/f{turn}"], job="7")
        os.close(fd)
        worker.commit_files(root, [(new, f"sub/f{turn}", 0o644, 5)])
        worker.symlink(root, [("x", f"sub/l{turn}", 5)], job="7")
        worker.finalize_directories(root, [(f"sub/d{turn}", 0o755, 5)])
        worker.remove_unfinished(root, ["sub"], job="7")
        worker.remove_files(root, [f"sub/f{turn}", "sub/secret"])
        worker.remove_tree(root, [f"sub/d{turn}", "sub/deep"])

    with start_user_worker(USER, USER) as worker, racing(lambda: swap(place / "open", "sub", place / "own")):
        *_, refused = turns(write)
    assert owned(place) == before
    assert refused >= REFUSED


def test_reading_goes_through_no_link_that_is_swapped_in(place: Path) -> None:
    (place / "open/sub/mine").write_text("mine")
    give_to_user(place / "open")
    names: set[str] = set()

    def walk(_turn: int) -> None:
        found = [row for rows in worker.walk(str(place / "open")) for row in rows.rows]
        names.update(str(row[1]) for row in found)
        if any(row[0] != "d" and row[1] == "sub" for row in found):
            raise UserWorkerError("sub", 40, "it met a link")

    with start_user_worker(USER, USER) as worker, racing(lambda: swap(place / "open", "sub", place / "own")):
        *_, refused = turns(walk)
    assert not any("secret" in name or "deep" in name for name in names)
    assert refused >= REFUSED


def test_a_file_that_is_exchanged_while_it_is_written_keeps_its_mode(place: Path) -> None:
    """The other one moves a file of the user's, which he may not read, to the place of the one that is written."""
    closed = place / "open/closed"
    closed.write_text("closed")
    give_to_user(place / "open")
    closed.chmod(0o600)
    with start_user_worker(USER, USER) as worker:
        ((new, fd),) = worker.create_files(str(place / "open"), ["result"], job="7")
        os.close(fd)
        closed.rename(place / "open" / new)
        with pytest.raises(UserWorkerError, match="was exchanged while it was written"):
            worker.commit_files(str(place / "open"), [(new, "result", 0o644, 5)])
    assert not (place / "open/result").exists()
    assert (place / "open" / new).stat().st_mode & 0o777 == 0o600
    # And as fast as can be, by renames to whatever is being written.
    secret = place / "open/closed"
    secret.write_text("closed")
    os.chown(secret, USER, USER)
    secret.chmod(0o600)

    def exchange() -> None:
        for path in (place / "open").iterdir():
            if path.name.startswith(".burst-7-"):
                path.rename(place / "open/theirs")
                secret.rename(path)
                path.rename(secret)

    def write(_turn: int) -> None:
        ((new, fd),) = worker.create_files(str(place / "open"), ["result"], job="7")
        os.close(fd)
        worker.commit_files(str(place / "open"), [(new, "result", 0o644, 5)])

    with start_user_worker(USER, USER) as worker, racing(exchange):
        *_, refused = turns(write)
    assert refused >= REFUSED
    for path in (place / "open").iterdir():
        assert path.is_dir() or path.read_text() != "closed" or path.stat().st_mode & 0o777 == 0o600
