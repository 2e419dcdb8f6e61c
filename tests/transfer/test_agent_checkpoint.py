"""A checkpoint: the newest whole one is taken while its job writes, and is put back as it was."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from burstd.domain.plugins.stager import OBJECT_BYTES
from burstd.transfer.agent.checkpoint import CheckpointReader
from burstd.transfer.agent.packing import OutgoingBuffers, PendingObject
from burstd.transfer.content_store.manifest import ManifestEntry, decode_manifest
from tests.reach import let_others_in
from tests.transfer.agent_rig import ADA, AgentAnsweredError, AgentRig, directory
from tests.transfer.awkward import MIB

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
HALF = 4000


class Bodies(OutgoingBuffers):
    """Keeps the objects. The job writes on whenever a buffer is asked for, in the middle of the reading."""

    def __init__(self, job: Iterator[None]) -> None:
        self._job = job
        self._buffer = bytearray(OBJECT_BYTES)
        self.bodies: dict[str, bytes] = {}

    def acquire_buffer(self) -> int:
        next(self._job, None)
        return 0

    def view(self, buffer: int) -> memoryview:  # noqa: ARG002 - there is one
        return memoryview(self._buffer)

    def submit_buffer(self, buffer: int, length: int, pending: PendingObject | None = None) -> PendingObject:
        pending, body = pending or PendingObject(), bytes(self.view(buffer)[:length])
        pending.key = hashlib.sha256(body).hexdigest()
        self.bodies[pending.key] = body
        return pending

    def release_buffer(self, buffer: int) -> None:
        """The next one is the same."""

    def files(self, tree: dict[str, Any]) -> dict[str, bytes]:
        def content(entry: ManifestEntry) -> bytes:
            return b"".join(self.bodies[p.key][p.offset :][: p.length] for p in entry.pieces)

        entries = decode_manifest(self.bodies[key] for key, _, _ in tree["manifest"])
        return {os.fsdecode(e.path): content(e) for e in entries if e.kind == "f"}


def text(number: int) -> str:
    return f"{number:04d}" * (HALF // 4)


def in_place(path: Path, number: int) -> Iterator[None]:
    """A file that is whole when it is closed."""
    with path.open("w") as file:
        for _ in range(2):
            file.write(text(number))
            file.flush()
            yield
    for _ in range(4):
        yield


def directories_by_rename(top: Path, number: int) -> Iterator[None]:
    """The next directory, file by file, each opened again and again; the last but one goes."""
    new = top / f"step-{number}.tmp"
    new.mkdir()
    for name in ("model", "optimizer"):
        for _ in range(2):
            with (new / name).open("a") as file:
                file.write(text(number))
            yield
    new.rename(top / f"step-{number}")
    yield
    for old in top.glob(f"step-{number - 2}"):
        for file_of_old in old.iterdir():
            file_of_old.unlink()
            yield
        old.rmdir()
    yield


def file_by_rename(path: Path, number: int) -> Iterator[None]:
    for half in range(1, 3):
        path.with_suffix(".tmp").write_text(text(number) * half)
        yield
    path.with_suffix(".tmp").rename(path)
    yield


def writes(kind: str, out: Path) -> Iterator[None]:
    for number in range(1, 5):
        if kind == "step-*":
            yield from directories_by_rename(out, number)
        else:
            yield from (in_place if kind == "state" else file_by_rename)(out / kind, number)


@pytest.mark.parametrize(
    ("kind", "pauses"), [("state", False), ("state", True), ("step-*", False), ("by_rename", False)]
)
def test_one_that_is_being_written_is_never_taken(tmp_path: Path, kind: str, *, pauses: bool) -> None:
    """At every instant of the job's writing, which goes on during the reading, or pauses."""
    instants = sum(1 for _ in writes(kind, _folder(tmp_path / "count")))
    taken: dict[str, int] = {}
    for instant in range(instants):
        job = writes(kind, out := _folder(tmp_path / str(instant)))
        for _ in range(instant):
            next(job)
        bodies = Bodies(iter(()) if pauses else job)
        reader = CheckpointReader(bodies, str(out), kind)
        reader.max_bytes = MIB
        found = reader.read()
        if found["tree"] is None:
            continue
        files = bodies.files(found["tree"])
        assert set(files) == ({"model", "optimizer"} if kind == "step-*" else {kind})
        numbers = {body[:4] for body in files.values()}
        assert len(numbers) == 1, found
        assert all(body == 2 * text(int(body[:4])).encode() for body in files.values()), found
        taken[numbers.pop().decode()] = instant
    assert len(taken) >= 2, taken


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


@pytest.fixture
def rig(tmp_path: Path) -> AgentRig:
    let_others_in(tmp_path)
    rig = AgentRig(tmp_path / "node")
    rig.deliver("12", rig.tree([directory()]))
    return rig


@needs_root
def test_there_and_back_and_what_is_known_is_not_read_again(rig: AgentRig) -> None:
    body = os.urandom(40 * MIB)
    out = rig.write_output(**{"c__step-1__w": body, "c__step-1__deep__s": b"1"})
    (out / "c/step-1/deep/s").chmod(0o400)
    (out / "c/step-1/out").symlink_to("/etc")
    first = rig.checkpoint("12", "c/step-*")
    assert (first["path"], first["changing"], first["sent"] > 40 * MIB) == ("c/step-1", "", True)
    known = rig.checkpoint("12", "c/step-*", first["fingerprint"])
    assert (known["path"], known["tree"], known["sent"]) == ("c/step-1", None, 0)
    rig.write_output(**{"c__step-2__w": body, "c__step-2__deep__s": b"2"})
    rig.write_output(**{"c__step-3.tmp__w": body})
    second = rig.checkpoint("12", "c/step-*", first["fingerprint"])
    assert second["path"] == "c/step-2"
    assert second["sent"] < 4 * MIB + (40 % 32) * MIB, "the object that did not change is there"
    rig.clear("12")
    rig.put_back("12", first)
    back = rig.job("12") / "out/c/step-1"
    assert (back / "w").read_bytes() == body
    facts = (back / "deep/s").stat()
    assert ((back / "deep/s").read_bytes(), oct(facts.st_mode), facts.st_uid) == (b"1", "0o100400", ADA)
    assert not os.path.lexists(back / "out"), "a link that leads out of it is left out"
    rig.write_output(**{"c__step-1__w": b"changed by the job"})
    assert rig.put_back("12", first)["fetched"] == 0
    assert (back / "w").read_bytes() == b"changed by the job", "what is there stays"


@needs_root
def test_one_that_answers_to_a_signal_is_waited_for(rig: AgentRig) -> None:
    rig.write_output(state=b"old")

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        assert question == {"ready": True}
        rig.write_output(**{"state.tmp": b"new"})
        (rig.job("12") / "out/state.tmp").rename(rig.job("12") / "out/state")
        return {}

    rig.answer = answer
    found = rig.checkpoint("12", "state", wait_s=30)
    assert rig.content(rig.entries(found["tree"], "checkpoint/12")[0], "checkpoint/12") == b"new"
    rig.answer = lambda _: {}
    late = rig.checkpoint("12", "state", found["fingerprint"], wait_s=0.3)
    assert late["tree"] is None, "none came: it is the one that is known"


@needs_root
def test_what_is_no_checkpoint(rig: AgentRig) -> None:
    out = rig.write_output(big=b"12345")
    (out / "link").symlink_to("big")
    nothing = rig.checkpoint("12", "none")
    assert (nothing["path"], nothing["tree"], nothing["changing"]) == ("", None, "")
    with (out / "big").open("a"):
        changing = rig.checkpoint("12", "big")
    assert (changing["tree"], changing["changing"]) == (None, "big is being written")
    for pattern, sentence in (
        ("../in", "none below the job's output folder"),
        ("link", "link is a symbolic link; name what it leads to"),
    ):
        with pytest.raises(AgentAnsweredError, match=sentence):
            rig.checkpoint("12", pattern)
    with pytest.raises(AgentAnsweredError, match="has 5 bytes, holes included, and 4 are left"):
        rig.checkpoint("12", "big", max_bytes=4)


@needs_root
def test_a_node_that_lies_about_its_checkpoint(rig: AgentRig) -> None:
    """More than it told of, or a path that leads out, is put back nowhere."""
    rig.write_output(c__a=b"12345", c__b=b"12345")
    found = rig.checkpoint("12", "c")
    rig.clear("12")
    with pytest.raises(AgentAnsweredError, match="sends more than the 2 entries"):
        rig.put_back("12", {**found, "tree": {**found["tree"], "entries": 2}})
    with pytest.raises(AgentAnsweredError, match="no path below the output folder"):
        rig.put_back("12", {**found, "path": "c/../../in/x"})
    assert list((rig.job("12") / "out").iterdir()) == []
