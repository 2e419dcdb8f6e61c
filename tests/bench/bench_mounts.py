"""Mounted trees beside sshfs by hand: ``python -m tests.bench.bench_mounts`` (root).

By hand is ``sshfs -o allow_other,default_permissions HOST:PATH`` on the same node, over the same line, to an sshd on
the head that serves the same directory in memory. Both write and read with an ordinary user's rights, in turn. Each
round reads a file that the node has not seen. The latency is that of a relay between both, for bytes of either side.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from burstd.domain.claim import Claim
from providers.sandbox.boxes.boot.description import BindMount, BoxFile
from providers.sandbox.boxes.box import Box, BoxSpec
from providers.sandbox.boxes.images.rootfs import ensure_rootfs
from tests.bench.staging_contest import Contest, Contestant, table
from tests.mounts.rig import ADA, MountSite, in_node, mount_site
from tests.node.conftest import on_network

OURS, BY_HAND = "burstd", "sshfs by hand"
HEAD = "10.77.0.2"
RELAYS: Mapping[int, str] = {10022: "10.77.1.1", 10023: HEAD}
"""Port of the hub -> whose sshd it leads to, later."""
OPEN = """
import os, sys
for number in range(int(sys.argv[2])):
    with open(f"{sys.argv[1]}/{number}") as file:
        file.read()
"""


async def _relay(half_s: float, address: str, near: asyncio.StreamReader, answer: asyncio.StreamWriter) -> None:
    far, there = await asyncio.open_connection(address, 22)

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def deliver() -> None:
            while True:
                due, data = await under_way.get()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    writer.close()
                    return
                writer.write(data)
                await writer.drain()

        delivering = asyncio.create_task(deliver())
        while data := await reader.read(1 << 16):
            under_way.put_nowait((time.monotonic() + half_s, data))
        under_way.put_nowait((0.0, b""))
        await delivering

    await asyncio.gather(carry(near, there), carry(far, answer), return_exceptions=True)


@contextmanager
def relays(network: str, latency_s: float) -> Iterator[None]:
    """On the hub a port for each sshd, which bytes and their answers reach ``latency_s`` later."""
    ready, over = threading.Event(), threading.Event()

    async def serve() -> None:
        for port, address in RELAYS.items():
            await asyncio.start_server(partial(_relay, latency_s / 2, address), "0.0.0.0", port)  # noqa: S104 - a lab's
        ready.set()
        await asyncio.to_thread(over.wait)

    def run() -> None:
        with on_network(network):
            asyncio.run(serve())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert ready.wait(10)
        yield
    finally:
        over.set()
        thread.join()


class Bench:
    """A node, a head for those who mount by hand, and one directory of both."""

    def __init__(self, site: MountSite, size_mb: int, files: int) -> None:
        self.site, self.size_mb, self.files = site, size_mb, files
        self.tree = site.home(ADA)
        self.hand = Path("/mnt/hand")
        self._round = 0
        self._config = site.validator.config
        self.node, self.claim = site.boot()
        self.node.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", "/root/.ssh/id_ed25519"])
        public = self.node.path("/root/.ssh/id_ed25519.pub").read_text(encoding="ascii")
        self.head: Box = site.lab.start(
            BoxSpec(
                "head",
                HEAD,
                [ensure_rootfs("bookworm").path],
                binds=[BindMount(self.tree, read_only=False)],
                files=[BoxFile("/root/.ssh/authorized_keys", public, 0o600)],
            )
        )
        self.head.wait_booted()

    @contextmanager
    def mounted(self, claim: Claim, host: str, port: int) -> Iterator[None]:
        """Both ways."""
        self.site.streams.start(claim, ADA, [self.site.tree(ADA)])
        by_hand = f"mkdir -p {self.hand}; sshfs -p {port} -o allow_other,default_permissions"
        by_hand += f",StrictHostKeyChecking=no root@{host}:{self.tree} {self.hand}"
        in_node(self.node, None, by_hand)
        try:
            yield
        finally:
            in_node(self.node, None, f"umount {self.hand}")
            self.site.validator.config = self._config
            self.site.streams.stop(self.claim, claim.id, ADA.uid)

    def _as_ada(self, command: str) -> None:
        in_node(self.node, ADA, command, timeout=600)

    def _clean(self) -> None:
        for path in self.tree.iterdir():
            if path.is_file():
                path.unlink()

    def writes(self, folder: Path) -> Contestant:
        """A large file, with fsync."""
        command = f"dd if=/dev/zero of={folder}/written bs=1M count={self.size_mb} conv=fsync 2>/dev/null"
        return Contestant(lambda: lambda: self._as_ada(command), self._clean)

    def reads(self, folder: Path) -> Contestant:
        """A large file that the node has not seen."""

        def begin() -> Callable[[], object]:
            self._round += 1
            made = self.tree / f"large-{self._round}"
            with made.open("wb") as file:
                for _ in range(self.size_mb):
                    file.write(os.urandom(1 << 20))
            made.chmod(0o644)
            command = f"dd if={folder}/{made.name} of=/dev/null bs=1M 2>/dev/null"
            return lambda: self._as_ada(command)

        return Contestant(begin, self._clean)

    def opens(self, folder: Path) -> Contestant:
        """Small files of a directory that the node has not seen."""

        def begin() -> Callable[[], object]:
            self._round += 1
            made = self.tree / f"small-{self._round}"
            made.mkdir(mode=0o755)
            for number in range(self.files):
                (made / str(number)).write_text("x", encoding="ascii")
            command = shlex.join(["python3", "-c", OPEN, f"{folder}/{made.name}", str(self.files)])
            return lambda: self._as_ada(command)

        return Contestant(begin)


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size-mb", type=int, default=300)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--latency-ms", type=float, default=20.0)
    parser.add_argument("--turns", type=int, default=5)
    asked = parser.parse_args()
    rows = []
    with mount_site() as site:
        size = f"size={2 * asked.size_mb + 64}m,mode=755,uid={ADA.uid},gid={ADA.gid}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", size, "tmpfs", str(site.home(ADA))], check=True)
        try:
            bench = Bench(site, asked.size_mb, asked.files)
            contests = [
                ("write and fsync", bench.writes, asked.size_mb, 0.8),
                ("read, cold", bench.reads, asked.size_mb, 0.8),
                (f"open {asked.files} files", bench.opens, 0, 0.83),
            ]
            with bench.mounted(bench.claim, HEAD, 22):
                for title, make, size_mb, bar in contests:
                    rows += _contest(title, make, bench, size_mb, bar, asked.turns)
            network = site.lab.network
            assert network.hub is not None
            site.validator.config = replace(site.validator.config, ssh_port=10022)
            far = replace(bench.claim, address=network.gateway)
            with relays(network.hub, asked.latency_ms / 1000), bench.mounted(far, network.gateway, 10023):
                title = f"open {asked.files} files, {asked.latency_ms:g} ms"
                rows += _contest(title, bench.opens, bench, 0, 0.83, 1)
        finally:
            site.lab.down()
            subprocess.run(["umount", "-l", str(site.home(ADA))], check=True)
    print(table(rows))  # noqa: T201 - the figures


def _contest(
    title: str, make: Callable[[Path], Contestant], bench: Bench, size_mb: int, bar: float, turns: int
) -> list[list[str]]:
    both = {OURS: make(bench.tree), BY_HAND: make(bench.hand)}
    contest = Contest(title, OURS, both, {BY_HAND: bar}, float(size_mb))
    contest.run_turns(turns)
    return [list(row) for row in contest.rows()]


if __name__ == "__main__":
    main()
