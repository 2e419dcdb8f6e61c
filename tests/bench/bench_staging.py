"""Data to a store and to a node, beside the tools people use: ``python -m tests.bench.bench_staging`` (root).

A storage node in a box with sshd, and a SeaweedFS for S3; burstd's Sender with a hand of an ordinary user, and the
agent as a node runs it. All contestants have the same source, in memory, and the same disk; who is measured against
whom runs in turn with it, and nobody waits for the disk. Digests and the starts of programs are in the times. The
daemon's connection to a storage node stays open and is so here, the tools' is made; "first contact" makes it too.
"""

from __future__ import annotations

import argparse
import itertools
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

from burstd.domain.plugins.stager import Stager
from burstd.domain.staging import Tree
from staging.objects.s3 import S3Settings, S3Stager
from staging.ssh.stager import SshSettings, SshStager
from tests.bench.staging_contest import Contest, Contestant, table
from tests.bench.staging_ours import (
    USER,
    BenchNode,
    CountingStager,
    new_sender,
    no_digests,
    send,
    send_concurrently,
)
from tests.bench.staging_peers import S3Peers, rsync, shell, ssh
from tests.lab.s3_server import S3Server
from tests.lab.ssh_store import DATA, SshStore

OURS = "burstd"
FIRST = "burstd, first contact"
SMALL_BYTES = 4096
IN_A_FOLDER = 100
USERS = 10


class BenchSources:
    """Sources, and room for what the contestants make, below a folder of its own."""

    def __init__(self, top: Path, size_mb: int, files: int, *, digests: bool = True) -> None:
        top.chmod(0o755)
        self.top = top
        self.digests = digests
        self.size_mb = size_mb
        self.files = files
        self.large = top / "large"
        with self.large.open("wb") as file:
            for _ in range(size_mb):
                file.write(os.urandom(1 << 20))
        self.small = top / "small"
        for number in range(files):
            path = self.small / str(number // IN_A_FOLDER) / f"{number}.dat"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(SMALL_BYTES))
        for path in (self.large, self.small, *self.small.rglob("*")):
            os.chown(path, USER, USER)
        self._numbers = itertools.count()

    @property
    def small_mb(self) -> float:
        """Of all small files."""
        return self.files * SMALL_BYTES / (1 << 20)

    def bench_node(self) -> BenchNode:
        """A node here."""
        return BenchNode(self.top, digests=self.digests)

    def index(self) -> Path:
        """A name for an index that is not there."""
        return self.top / f"index-{next(self._numbers)}.sqlite"

    def change(self) -> None:
        """Every hundredth small file gets other content."""
        for number in range(0, self.files, 100):
            (self.small / str(number // IN_A_FOLDER) / f"{number}.dat").write_bytes(os.urandom(SMALL_BYTES))


class SshBench:
    """What is measured with the storage node. All of it within ``node.reach()``."""

    def __init__(self, ground: BenchSources, node: SshStore) -> None:
        self.ground = ground
        self.node = node
        self.disk = node.folder / "data"
        self.last: SshStager | None = None

    def stager(self) -> SshStager:
        """A new one, without a connection."""
        settings = SshSettings(
            host=self.node.address,
            key_file=self.node.key,
            node_key_file=self.node.node_key,
            known_hosts_file=self.node.known_hosts,
            path=Path(DATA),
        )
        return SshStager("store", "lab", settings)

    def sends(self, source: Path, *, connected: bool = True) -> Contestant:
        """With an index and a store that hold nothing."""

        def begin() -> Callable[[], object]:
            self.last = self.stager()
            if connected:
                self.last.free_bytes()
            sender = new_sender(self.last, self.ground.index())
            return lambda: send(sender, source)

        return Contestant(begin, self.clear)

    def makes(self, command: str) -> Contestant:
        """A pipeline of shells that fills TARGET on the node."""
        return Contestant(lambda: lambda: shell(command), self.clear)

    def clear(self) -> None:
        """Nothing is left on the node but burstd's program."""
        if self.last is not None:
            self.last.close()
            self.last = None
        for path in self.disk.iterdir():
            if path.name != ".programs":
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def bench_large_file(self) -> Contest:
        """One file of random bytes."""
        pipe = f"{ssh(self.node, f'cat > {DATA}/f')} < {self.ground.large}"
        ways = {
            OURS: self.sends(self.ground.large),
            FIRST: self.sends(self.ground.large, connected=False),
            "ssh cat": self.makes(pipe),
        }
        title = f"a file of {self.ground.size_mb} MB to the storage node"
        return Contest(title, OURS, ways, {"ssh cat": 0.9}, self.ground.size_mb)

    def bench_small_files(self) -> Contest:
        """Many small files."""
        ground = self.ground
        far = f"mkdir {DATA}/t && tar x -C {DATA}/t"
        ways = {
            OURS: self.sends(ground.small),
            "tar over ssh": self.makes(f"tar c -C {ground.small} . | {ssh(self.node, far)}"),
            "rsync -a": Contestant(lambda: rsync(self.node, ground.small, f"{DATA}/r"), self.clear),
        }
        title = f"{ground.files} files of 4 KB to the storage node"
        return Contest(title, OURS, ways, {"tar over ssh": 0.9, "rsync -a": 3.0}, ground.small_mb)

    def bench_resend(self) -> Iterator[Contest]:
        """The same tree once more, and changed by one file in a hundred."""
        ground = self.ground
        stager = self.stager()
        sender = new_sender(stager, ground.index())
        copy = rsync(self.node, ground.small, f"{DATA}/r")
        send(sender, ground.small)
        copy()
        ways = {OURS: Contestant(lambda: lambda: send(sender, ground.small)), "rsync -a": Contestant(lambda: copy)}
        bars = {"rsync -a": 1.0}
        yield Contest(f"{ground.files} files, nothing has changed", OURS, ways, bars)
        yield Contest(f"{ground.files} files, 1 % has changed", OURS, ways, bars, before_turn=ground.change)
        stager.close()
        self.clear()

    def bench_to_node(self, source: Path, title: str, peer: tuple[str, str], size_mb: float) -> Contest:
        """From the storage node to a node's disk, which is this machine's."""
        stager = self.stager()
        tree = send(new_sender(stager, self.ground.index()), source)
        agent = self.ground.bench_node()
        target = self.ground.top / "fetched"
        name, command = peer

        def piped() -> Callable[[], object]:
            target.mkdir()
            return lambda: shell(f"cd {target} && {command}")

        ways = {
            OURS: Contestant(lambda: agent.deliver(stager, tree), agent.clear),
            name: Contestant(piped, lambda: shutil.rmtree(target)),
        }
        self.last = stager
        return Contest(title, OURS, ways, {}, size_mb)

    def bench_concurrent(self) -> tuple[Contest, list[str]]:
        """One transfer, ten of one user, ten of ten users; and what the counters say."""
        said: list[str] = []
        unique = self.ground.large.stat().st_size

        def begin(uids: Sequence[int]) -> Callable[[], object]:
            self.last = self.stager()
            self.last.free_bytes()
            counting = CountingStager(self.last)
            sender = new_sender(counting, self.ground.index())

            def run() -> None:
                told = send_concurrently(sender, self.ground.large, uids)
                extra = counting.bytes_put - unique
                said.append(f"{len(uids)} transfers of {len(set(uids))} users: {unique} bytes of content, "
                            f"{counting.bytes_put} put ({extra} of manifests), {told} counted as sent")  # fmt: skip

            return run

        def contestant_of(uids: Sequence[int]) -> Contestant:
            return Contestant(lambda: begin(uids), self.clear)

        ways = {
            "one job": contestant_of([USER]),
            "10 jobs of one user": contestant_of([USER] * USERS),
            "10 jobs of 10 users": contestant_of(range(USER, USER + USERS)),
        }
        title = f"{self.ground.size_mb} MB of input"
        return Contest(title, "one job", ways, {}, self.ground.size_mb), said


class S3Bench:
    """What is measured with an S3 server."""

    def __init__(self, ground: BenchSources, server: S3Server) -> None:
        self.ground = ground
        self.server = server
        self.keys = ground.top / "s3.keys"
        self.keys.touch(0o600)
        self.keys.write_text(f"{server.access_key}\n{server.secret_key}\n", encoding="ascii")
        self._numbers = itertools.count()

    def bucket(self) -> str:
        """A new one, which has taken an object: it has a volume."""
        name = self.server.make_bucket(f"bench-{next(self._numbers)}")
        self.server.client().put_object(Bucket=name, Key="first", Body=b"x")
        return name

    def stager(self, bucket: str) -> S3Stager:
        """A new one, without a connection."""
        settings = S3Settings(
            bucket=bucket, endpoint=self.server.endpoint, access_key_file=self.keys, addressing="path"
        )
        return S3Stager("store", "lab", settings)

    def drop(self, bucket: str) -> None:
        """With all that is in it, which gives the disk's room back at once."""
        client = self.server.client()
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            for row in page.get("Contents", ()):
                client.delete_object(Bucket=bucket, Key=row["Key"])
        client.delete_bucket(Bucket=bucket)

    def puts(self) -> Contest:
        """The large file, by each, into a bucket of its own."""
        held: list[str] = []

        def begin(who: str) -> Callable[[], object]:
            held.append(self.bucket())
            if who == OURS:
                sender = new_sender(self.stager(held[-1]), self.ground.index())
                return lambda: send(sender, self.ground.large)
            return S3Peers(self.server, held[-1], self.ground.top).puts(self.ground.large)[who]

        def way(who: str) -> Contestant:
            return Contestant(lambda: begin(who), lambda: self.drop(held.pop()))

        names = (OURS, "boto3", "rclone", "s5cmd")
        title = f"a file of {self.ground.size_mb} MB into S3"
        return Contest(title, OURS, {n: way(n) for n in names}, dict.fromkeys(names[1:], 1.0), self.ground.size_mb)

    def gets(self) -> Contest:
        """The large file, to the node's disk."""
        bucket = self.bucket()
        stager: Stager = self.stager(bucket)
        tree: Tree = send(new_sender(stager, self.ground.index()), self.ground.large)
        peers = S3Peers(self.server, bucket, self.ground.top)
        peers.puts(self.ground.large)["boto3"]()
        agent = self.ground.bench_node()
        target = self.ground.top / "fetched"
        ways = {OURS: Contestant(lambda: agent.deliver(stager, tree), agent.clear)}
        for name, get in peers.gets(target).items():
            ways[name] = Contestant(lambda get=get: get, target.unlink)  # type: ignore[misc]
        title = f"a file of {self.ground.size_mb} MB from S3 to a node"
        return Contest(title, OURS, ways, dict.fromkeys(list(ways)[1:], 1.0), self.ground.size_mb)


def contests_ssh(ground: BenchSources, node: SshStore, wanted: Sequence[str], notes: list[str]) -> Iterator[Contest]:
    """One after the other; each is held before the next is made."""
    this = SshBench(ground, node)
    if "large" in wanted:
        yield this.bench_large_file()
    if "small" in wanted:
        yield this.bench_small_files()
    if "again" in wanted:
        yield from this.bench_resend()
    if "node" in wanted:
        far = this.disk / "source"
        for source, what, size in ((ground.small, "tree", ground.small_mb), (ground.large, "file", ground.size_mb)):
            shutil.rmtree(far, ignore_errors=True)
            if source.is_dir():
                shutil.copytree(source, far)
            else:
                far.mkdir()
                shutil.copy(source, far / "f")
            back = ssh(node, f"tar c -C {DATA}/source .") + " | tar x"
            shell(f"chmod -R a+rX {far}")
            yield this.bench_to_node(
                source, f"that {what} from the storage node to a node", ("tar over ssh", back), size
            )
            this.clear()
    if "many" in wanted:
        contest, said = this.bench_concurrent()
        yield contest
        notes += said


def contests_s3(ground: BenchSources, server: S3Server, wanted: Sequence[str]) -> Iterator[Contest]:
    """See contests_ssh."""
    this = S3Bench(ground, server)
    if "put" in wanted:
        yield this.puts()
    if "get" in wanted:
        yield this.gets()


@contextmanager
def folder(where: Path | None) -> Iterator[Path]:
    """On the disk that is measured."""
    place = Path(tempfile.mkdtemp(prefix="burstd-bench-", dir=where))
    try:
        yield place
    finally:
        shutil.rmtree(place)


SSH = ("large", "small", "again", "node", "many")
S3 = ("put", "get")


def main() -> int:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size-mb", type=int, default=1024, help="of the large file")
    parser.add_argument("--files", type=int, default=10_000, help="of 4 KB")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="on the disk that is to be used; 20 GB at most")
    parser.add_argument("--no-digests", action="store_true", help="burstd hashes nothing: what SHA-256 costs it")
    parser.add_argument("--only", nargs="*", choices=[*SSH, *S3], default=[*SSH, *S3])
    options = parser.parse_args()
    rows: list[Sequence[str]] = []
    notes: list[str] = []

    def hold(contests: Iterator[Contest]) -> None:
        for contest in contests:
            contest.run_turns(options.turns)
            rows.extend(contest.rows())

    with ExitStack() as stack:
        top = stack.enter_context(folder(options.folder))
        ground = BenchSources(top, options.size_mb, options.files, digests=not options.no_digests)
        stack.enter_context(no_digests() if options.no_digests else nullcontext())
        if set(SSH) & set(options.only):
            with SshStore(top / "node") as node, node.reach():
                hold(contests_ssh(ground, node, options.only, notes))
        if set(S3) & set(options.only):
            with S3Server(top / "s3") as server:
                hold(contests_s3(ground, server, options.only))
    sys.stdout.write("\n".join([table(rows), *dict.fromkeys(notes), ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
