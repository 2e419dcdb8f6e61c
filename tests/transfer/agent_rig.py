"""Runs the node's agent as burstd does: the bundle, a request on its standard input, answers from its output."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from burstd.domain.staging import ObjectRange
from burstd.transfer.content_store.manifest import ManifestEntry, decode_manifest, encode_manifest, object_key
from burstd.transfer.content_store.object_folder import ObjectFolder
from burstd.transfer.protocol.bundle import agent_zipapp

ADA, BOB = 41001, 41002
"""Users of tests: numbers suffice."""


def as_user(uid: int, action: Callable[[], object]) -> int:
    """Exit status of a process of the user that does it: 0, or the errno of what it raised."""
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            os.setgroups([])
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            action()
            status = 0
        except OSError as error:
            status = error.errno or 98
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def give(path: Path) -> None:
    """All of it is ada's."""
    for above, names, others in os.walk(path):
        for name in (*names, *others):
            os.chown(Path(above) / name, ADA, ADA, follow_symlinks=False)


class AgentAnsweredError(Exception):
    """The agent's error."""

    def __init__(self, row: dict[str, Any]) -> None:
        super().__init__(f"{row['kind']}: {row['error']}")
        self.kind = row["kind"]
        self.sentence = row["error"]
        self.keys = row.get("keys", [])


@dataclass
class AgentRig:
    """A node's disk and a store, in a folder that users can pass."""

    top: Path
    reach: dict[str, Any] = field(default_factory=dict)
    answer: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    python: tuple[str, ...] = (sys.executable,)
    """What runs the agent."""

    def __post_init__(self) -> None:
        self.top.mkdir(mode=0o755, exist_ok=True)
        self.store_path = self.top / "store"
        self.store = ObjectFolder(self.store_path)
        self.store.ensure_root()
        self.spool = self.top / "spool"
        self.spool.mkdir(mode=0o755, exist_ok=True)
        self.program = self.top / "agent.pyz"
        self.program.write_bytes(agent_zipapp())
        self.reach = self.reach or {"kind": "dir", "facts": {"path": str(self.store_path)}}
        self.progress: list[dict[str, int]] = []
        self.uid = ADA
        self.keep_free = 0

    def job(self, job: str) -> Path:
        return self.spool / job

    def write_output(self, **files: bytes) -> Path:
        """Writes files of ada's into job 12's output, whose path it returns; ``__`` in a name is a slash."""
        out = self.job("12") / "out"
        for name, content in files.items():
            path = out / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        give(out)
        return out

    def put(self, body: bytes, prefix: str = "in") -> str:
        key = hashlib.sha256(body).hexdigest()
        self.store.put(object_key(prefix, key), body)
        return key

    def tree(self, entries: Iterable[ManifestEntry], name: str = "data", **more: Any) -> dict[str, Any]:
        """Puts a manifest; returns the tree as a request has it."""
        listed = list(entries)
        bodies = list(encode_manifest(listed))
        manifest = [[self.put(body), 0, len(body)] for body in bodies]
        return {
            "name": name, "access": "read_only", "prefix": "in", "single": False, "manifest": manifest,
            "digest": hashlib.sha256(b"".join(bodies)).hexdigest(), "size": sum(e.size for e in listed), **more,
        }  # fmt: skip

    def start(self, request: dict[str, Any]) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*self.python, "-I", "-S", str(self.program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdin is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        return process

    def read_answers(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        with process, process.stdin, process.stdout:
            for line in process.stdout:
                row: dict[str, Any] = json.loads(line)
                if "progress" in row:
                    self.progress.append(row["progress"])
                elif "error" in row:
                    raise AgentAnsweredError(row)
                elif "done" in row:
                    return dict(row["done"])
                else:
                    assert self.answer is not None
                    process.stdin.write(json.dumps(self.answer(row)) + "\n")
                    process.stdin.flush()
        raise AssertionError(f"the agent ended without an answer: {process.wait()}")

    def run(self, request: dict[str, Any]) -> dict[str, Any]:
        return self.read_answers(self.start(request))

    def delivery_request(self, job: str, *trees: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {
            "do": "place", "job": job, "user": "ada", "uid": self.uid, "gid": self.uid, "groups": [self.uid],
            "dir": str(self.job(job)), "reach": self.reach, "trees": list(trees), "scratch": 0,
            "cache": {"dir": str(self.spool / "cache"), "keep_free": self.keep_free}, **more,
        }  # fmt: skip

    def deliver(self, job: str, *trees: dict[str, Any], **more: Any) -> dict[str, Any]:
        return self.run(self.delivery_request(job, *trees, **more))

    def collect(self, job: str, patterns: list[str], files: list[str] | None = None, **more: Any) -> dict[str, Any]:
        return self.run(
            {
                "do": "collect", "job": job, "user": "ada", "uid": self.uid, "gid": self.uid, "groups": [self.uid],
                "dir": str(self.job(job)), "patterns": patterns, "files": files or [], "prefix": f"out/{job}/gpu1",
                "reach": self.reach, **more,
            }
        )  # fmt: skip

    def checkpoint(self, job: str, pattern: str, known: str = "", **more: Any) -> dict[str, Any]:
        return self.run(
            {
                "do": "checkpoint", "job": job, "user": "ada", "uid": self.uid, "gid": self.uid, "groups": [self.uid],
                "dir": str(self.job(job)), "pattern": pattern, "known": known, "max_bytes": 1 << 40, "wait_s": 0,
                "prefix": f"checkpoint/{job}", "reach": self.reach, **more,
            }
        )  # fmt: skip

    def put_back(self, job: str, found: dict[str, Any], **more: Any) -> dict[str, Any]:
        """A checkpoint as ``checkpoint`` gave it, as burstd has it put back."""
        tree = found["tree"]
        row = {key: tree[key] for key in ("digest", "manifest", "size", "single", "entries")}
        row |= {"path": found["path"], "prefix": f"checkpoint/{job}", **more}
        return self.deliver(job, checkpoints=[row])

    def clear(self, job: str) -> dict[str, Any]:
        return self.run({"do": "clear", "job": job, "dir": str(self.job(job))})

    def entries(self, tree: dict[str, Any], prefix: str) -> list[ManifestEntry]:
        """Of a tree that was collected; its manifest is what its digest says."""
        bodies = []
        for key, offset, length in tree["manifest"]:
            body = self.store.get(object_key(prefix, key))
            assert hashlib.sha256(body).hexdigest() == key
            bodies.append(body[offset : offset + length])
        assert hashlib.sha256(b"".join(bodies)).hexdigest() == tree["digest"]
        return list(decode_manifest(bodies))

    def content(self, entry: ManifestEntry, prefix: str) -> bytes:
        """Of a file that was collected."""
        out = b""
        for piece in entry.pieces:
            if piece.key:
                body = self.store.get(object_key(prefix, piece.key))
                assert hashlib.sha256(body).hexdigest() == piece.key
                out += body[piece.offset : piece.offset + piece.length]
            else:
                out += bytes(piece.length)
        return out

    def back(self, tree: dict[str, Any], prefix: str, name: str = "back", access: str = "read_only") -> dict[str, Any]:
        """A collected tree as an input."""
        row = {key: tree[key] for key in ("digest", "manifest", "size", "single")}
        return {**row, "name": name, "access": access, "prefix": prefix}


def small(
    path: bytes, key: str, offset: int, length: int, mode: int = 0o644, mtime_ns: int = 10**18 + 7
) -> ManifestEntry:
    return ManifestEntry(path, "f", mode, mtime_ns, length, pieces=(ObjectRange(key, offset, length),))


def directory(path: bytes = b"", mode: int = 0o755, mtime_ns: int = 10**18) -> ManifestEntry:
    return ManifestEntry(path, "d", mode, mtime_ns)


def renamed(entry: ManifestEntry, path: bytes) -> ManifestEntry:
    return replace(entry, path=path)
