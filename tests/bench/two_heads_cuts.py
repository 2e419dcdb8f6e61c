"""Two heads in network namespaces, of which the leader is cut off from PostgreSQL: who acts until when.

A head has burstd's own Leadership and Store, with the times that they have in service, and does nothing but act, each
PACE_S. All are on one machine, so that one clock tells which act was first.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import psycopg

from burstd.daemon.standby import TRY_EVERY_S
from burstd.db import Leadership, StoreError
from burstd.db.leadership import SURE_S, end_process
from providers.sandbox.boxes.network import LabNetwork
from providers.sandbox.cloud.server import inside_network
from tests.db.acting import act_without_end
from tests.db.server import find_initdb, private_server
from tests.lab.patience import patience_s

PACE_S = 0.05
MOMENT_S = 3.0
"""Until a leader is cut off, at most, once the other head waits."""
_FIRST, _LAST, _TRIES, _ENDED = range(4)
"""When a head acted first and last, 0.0 for never; how often it found that the other leads; 1.0: it ended itself."""
_CONTEXT = multiprocessing.get_context("forkserver")
Acts = Sequence[float]


@dataclass(frozen=True, slots=True)
class Cut:
    """One. Seconds."""

    silent_before: float
    """From the former leader's last act to the next one's first; below zero: both acted."""
    took: float
    """From the cut to the first act of the next leader."""
    ended: bool
    """The former leader has, of its own accord."""
    one_leads: bool
    """Once both reach the database again."""


def _run_head(place: str, network: LabNetwork, host: str, acts: list[float]) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what it logs

    def end(why: str) -> None:
        acts[_ENDED] = 1.0
        end_process(why)

    with inside_network(replace(network, namespace=host)):  # this host's, in place of the hub's
        leadership = Leadership.open(place, "site", host, end=end)
        pause = threading.Event()
        while not _leads(leadership, acts):
            pause.wait(TRY_EVERY_S)

        def acted(_what: str) -> None:
            acts[_LAST] = time.monotonic()
            acts[_FIRST] = acts[_FIRST] or acts[_LAST]

        act_without_end(leadership, place, acted, SURE_S, partial(pause.wait, PACE_S))


def _leads(leadership: Leadership, acts: list[float]) -> bool:
    """One try, as the standby's, which tries on whatever is wrong."""
    with suppress(StoreError):
        if leadership.try_lead("", "1"):
            return True
        acts[_TRIES] += 1
    return False


class _Head:
    """A process."""

    def __init__(self, place: str, network: LabNetwork, host: str) -> None:
        self.host = host
        self._arguments = (place, network, host)
        self.start()

    def start(self) -> None:
        self.acts = _CONTEXT.RawArray("d", 4)
        self.process: ForkServerProcess = _CONTEXT.Process(target=_run_head, args=(*self._arguments, self.acts))
        self.process.start()


def _until(condition: Callable[[], object], timeout_s: float, what: str) -> None:
    until = time.monotonic() + patience_s(timeout_s)
    while not condition():
        assert time.monotonic() < until, f"it never comes: {what}"
        time.sleep(0.02)


def _link(network: LabNetwork, host: str, state: str) -> None:
    """The hub's end of a host's cable: ``0`` and it takes and gives nothing, without a word to either; ``3``: again."""
    command = [*network.enter(), "bridge", "link", "set", "dev", network.cable(host), "state", state]
    subprocess.run(command, check=True, capture_output=True)


def _cut(network: LabNetwork, heads: Sequence[_Head], chance: random.Random) -> Cut:
    _until(lambda: any(h.acts[_FIRST] for h in heads) and any(h.acts[_TRIES] for h in heads), 60, "one of two leads")
    other, leader = sorted(heads, key=lambda head: head.acts[_FIRST])
    # The moment is the point: it is drawn, not waited for.
    time.sleep(chance.uniform(0.0, MOMENT_S))
    _link(network, leader.host, "0")
    begun = time.monotonic()
    _until(lambda: other.acts[_FIRST], 60, "the other acts")
    if chance.random() < 0.5:
        # Whether the former leader still runs when the network is back, or not.
        leader.process.join(patience_s(60))
    _link(network, leader.host, "3")
    leader.process.join(patience_s(60))
    former = leader.acts
    leader.start()
    _until(lambda: leader.acts[_TRIES] or leader.acts[_FIRST], 60, "the former leader is back")
    back = time.monotonic()
    _until(lambda: other.acts[_LAST] > back, 60, "one acts")
    first = other.acts[_FIRST]
    return Cut(first - former[_LAST], first - begun, bool(former[_ENDED]), not leader.acts[_FIRST])


def _cut_pair(network: LabNetwork, place: str, hosts: Sequence[str], cuts: int, seed: int) -> list[Cut]:
    chance = random.Random(seed)  # noqa: S311 - nothing secret
    heads = [_Head(place, network, host) for host in hosts]
    try:
        return [_cut(network, heads, chance) for _ in range(cuts)]
    finally:
        for head in heads:
            head.process.kill()
            head.process.join()


@contextmanager
def _network(hosts: Sequence[str]) -> Iterator[LabNetwork]:
    network = LabNetwork(f"cuts{os.getpid()}")
    network.up()
    try:
        for number, host in enumerate(hosts, 10):
            network.attach(host, network.gateway.rpartition(".")[0] + f".{number}")
        yield network
    finally:
        network.down()


def cut_leaders(folder: Path, cuts: int, pairs: int, seed: int) -> list[Cut]:
    """So many cuts, by so many pairs of heads at once, each with a database of its own on one server."""
    _CONTEXT.set_forkserver_preload([__name__])
    initdb = find_initdb()
    assert initdb is not None, "PostgreSQL is not installed"
    data = folder / "postgresql"
    data.mkdir(0o700)
    hosts = [(f"head{2 * pair + 1}", f"head{2 * pair + 2}") for pair in range(pairs)]
    with (
        _network([host for both in hosts for host in both]) as network,
        inside_network(network),
        private_server(initdb, data, network.subnet),
        ThreadPoolExecutor(pairs) as pool,
    ):
        with psycopg.connect(host=str(data), user="burstd", dbname="postgres", autocommit=True) as made:
            for pair in range(pairs):
                made.execute(f"CREATE DATABASE pair{pair}".encode())
        work = [
            pool.submit(
                _cut_pair, network, f"postgresql://burstd@{network.gateway}/pair{pair}", both,
                cuts // pairs + (pair < cuts % pairs), seed + pair,
            )
            for pair, both in enumerate(hosts)
        ]  # fmt: skip
        return [cut for one in work for cut in one.result()]
