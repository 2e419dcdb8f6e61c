"""The server and the file of targets: scrapes of many, of slow and of rude clients; a full disk; a port in use."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import socket
import stat
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from burstd.db import Store, StoreUnavailable
from burstd.domain.plan import Plan
from burstd.domain.snapshot import Snapshot
from burstd.metrics import server, service
from burstd.metrics.counters import Counters
from burstd.metrics.families import FAMILIES
from burstd.metrics.server import MetricsAddressUnusable, listen
from burstd.metrics.service import MetricsService
from burstd.metrics.targets import TargetsFile, targets_text
from burstd.planner.lifecycle.orphans import NO_CLAIM
from burstd.settings import SettingsError, parse_settings
from burstd.settings.metrics import MetricsSettings
from tests.api.world import CLAIMS, NOW, SNAPSHOT, FixedClock
from tests.db.samples import ManualClock
from tests.doubles.lone_daemon import LoneDaemon


def wait(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


class Running:
    """The service, beside a loop that a test plays."""

    def __init__(self, store: Store, settings: MetricsSettings) -> None:
        self.settings = settings
        self.latest: tuple[Snapshot, Plan] | None = None
        self.clock = FixedClock(NOW)
        self.between_decisions = threading.Event()
        self.between_decisions.set()
        self.service = MetricsService(
            lambda: self.settings,
            Counters(),
            store.reader(),
            self.clock,
            lambda: self.latest,
            self.between_decisions,
            "1.0",
        )

    def loop(self, snapshot: Snapshot) -> None:
        self.latest = (snapshot, Plan())
        self.service.loop_ended(0.01)

    def get(self, path: str = "/metrics", method: str = "GET", **headers: str) -> tuple[int, bytes, Any]:
        request = urllib.request.Request(f"http://{self.settings.listen}{path}", headers=headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310  the address is this test's
                return answer.status, answer.read(), answer.headers
        except urllib.error.HTTPError as error:
            return error.code, error.read(), error.headers


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "burstd.db"), ManualClock()) as opened:
        yield opened


@pytest.fixture
def running(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(service, "REST_S", 0.01)
    monkeypatch.setattr(service, "NEXT_LOOP_S", 0.01)
    settings = MetricsSettings(listen=f"127.0.0.1:{free_port()}", file_sd=tmp_path / "nodes.json")
    up = Running(store, settings)
    up.service.start()
    yield up
    up.service.stop()


def test_a_scrape(running: Running) -> None:
    status, text, headers = running.get()
    assert (status, b"burstd_claims" in text) == (200, False)
    assert headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    running.loop(SNAPSHOT)
    wait(lambda: b"burstd_claims" in running.get()[1])
    status, packed, headers = running.get(**{"Accept-Encoding": "gzip;q=1.0, identity;q=0.5"})
    assert headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed) == running.get()[1]
    # The loop stands: what is served says so.
    running.clock.time += 100
    assert b"\nburstd_snapshot_age_seconds 101.000\n" in running.get()[1]
    assert running.get(**{"Accept-Encoding": "gzip;q=0"})[2]["content-encoding"] is None
    assert running.get("/")[0] == 404
    assert running.get(method="POST")[0] == 405
    status, text, headers = running.get(method="HEAD")
    assert (status, text, int(headers["content-length"]) > 1000) == (200, b"", True)


def test_a_decision_goes_before_the_rendering_for_a_moment(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    class Deciding(threading.Event):
        """Decisions that begin as often as somebody looks, and end as soon as somebody waits."""

        waits = 0

        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            self.waits += 1
            return True

    running.service._between_decisions = deciding = Deciding()
    running.loop(SNAPSHOT)
    wait(lambda: b"burstd_claims" in running.get()[1])
    assert deciding.waits > len(FAMILIES) / 2, "between two families, too"
    monkeypatch.setattr(service, "MAX_WAIT_S", 0.05)
    running.service._between_decisions = threading.Event()
    running.loop(replace(SNAPSHOT, now=NOW + 1))
    running.clock.time = NOW + 1
    wait(lambda: b"\nburstd_snapshot_age_seconds 0.000\n" in running.get()[1])


def test_what_is_found_right_after_a_restart_is_counted_once_zeros_were_scraped(running: Running, store: Store) -> None:
    store.log_event("orphan:i-1", new="removed", reason=f"i-1: {NO_CLAIM}", cause="reconciler")
    running.service.update()
    assert b"\nburstd_leaks_total 0.0\n" in running.get()[1]
    running.service.update()
    assert b"\nburstd_leaks_total 0.0\n" in running.get()[1], "no snapshot was there to scrape"
    running.latest = SNAPSHOT, Plan()
    running.service.update()
    running.service.update()
    assert b"\nburstd_leaks_total 0.0\n" in running.get()[1]
    running.service.update()
    assert b"\nburstd_leaks_total 1.0\n" in running.get()[1]


def test_without_scrapes_the_record_is_counted_after_a_while(running: Running, store: Store) -> None:
    store.log_event("orphan:i-1", new="removed", reason=f"i-1: {NO_CLAIM}", cause="reconciler")
    running.clock.time += service.ZEROS_S
    running.service.update()
    assert b"\nburstd_leaks_total 1.0\n" in running.get()[1]


def test_a_hundred_scrapes_at_once(running: Running) -> None:
    running.loop(SNAPSHOT)
    wait(lambda: b"burstd_claims" in running.get()[1])
    with ThreadPoolExecutor(100) as pool:
        answers = list(pool.map(lambda _: running.get(), range(100)))
    assert {(status, text) for status, text, _ in answers} == {(200, running.get()[1])}


@pytest.mark.slow
def test_slow_and_rude_clients_do_no_harm(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "CONNECTION_S", 1.0)
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 20)
    host, _, port = running.settings.listen.rpartition(":")
    slow = [socket.create_connection((host, int(port))) for _ in range(20)]
    slow[0].sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Never-Ends: ")
    slow[1].sendall(b"\x16\x03\x01\x02\x00\x01" * 1000)
    slow[2].sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 100_000)

    def answers() -> bool:
        try:
            return running.get()[0] == 200
        except OSError:  # While all places are taken.
            return False

    wait(answers)
    for one in slow:
        one.settimeout(30)
        # Whatever it got first, its connection ends.
        with contextlib.suppress(ConnectionError):
            while one.recv(65536):
                pass
        one.close()
    assert running.get()[0] == 200


def test_a_port_in_use_is_an_alarm_with_the_remedy_until_it_is_free(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("burstd.api.server.RETRY_S", 0.05)
    monkeypatch.setattr(service, "REST_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        up = Running(store, MetricsSettings(listen=address, file_sd=tmp_path / "nodes.json"))
        up.service.start()
        said = f"cannot listen on {address} ([metrics] listen): Address already in use; 'ss -ltnp' shows who has"
        assert up.service.alarms()[0].startswith(said)
        assert up.service.alarms()[0].endswith("; burstd goes on without it, and tries again every 0.05 s")
        up.loop(SNAPSHOT)
        wait((tmp_path / "nodes.json").exists)
    wait(lambda: up.service.alarms() == ())
    assert up.get()[0] == 200
    up.service.stop()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])))


def test_an_address_that_this_host_lacks_is_named() -> None:
    with pytest.raises(MetricsAddressUnusable, match="Cannot assign requested address"):
        listen("192.0.2.1:9797")
    with pytest.raises(MetricsAddressUnusable, match="that is no name of a host"):
        listen("a..b:9797")
    with pytest.raises(MetricsAddressUnusable, match=r"nowhere\.invalid:9797"):
        listen("nowhere.invalid:9797")
    with listen(f"[::1]:{free_port()}") as six:
        assert six.family is socket.AF_INET6


@pytest.mark.parametrize(
    "listen_on", ["9797", ":9797", "127.0.0.1", "127.0.0.1:0", "127.0.0.1:65536", "::1:9797", "http://a:1"]
)
def test_a_wrong_address_is_a_fault_of_the_file(listen_on: str) -> None:
    with pytest.raises(SettingsError, match=r"line 3: metrics.listen: must be 'HOST:PORT', such as '127.0.0.1:9797'"):
        parse_settings(f'cluster = "x"\n[metrics]\nlisten = "{listen_on}"\n')


@pytest.mark.slow
def test_burstd_runs_where_neither_metrics_nor_page_can_listen(tmp_path: Path) -> None:
    daemon = LoneDaemon(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        page = f'[web]\nsocket = "{tmp_path}/no/such/folder/page.sock"\nproxy_user = "root"\n'
        daemon.settings.write_text(daemon.settings.read_text() + f'[metrics]\nlisten = "{address}"\n{page}')
        daemon.start()
        with httpx.Client(transport=httpx.HTTPTransport(uds=f"{tmp_path}/run/control.sock")) as client:
            alarms = client.get("http://burstd/v1/status").json()["alarms"]
        assert any(alarm.startswith(f"cannot listen on {address} ([metrics] listen): ") for alarm in alarms)
        assert any(f"Make the directory {tmp_path}/no/such/folder first" in alarm for alarm in alarms)
        assert daemon.stop() == 0
    assert "a server cannot listen" in daemon.log_text()


def test_nothing_runs_where_nothing_is_wanted(store: Store) -> None:
    before = {thread.name for thread in threading.enumerate()}
    up = Running(store, MetricsSettings())
    up.service.start()
    up.loop(SNAPSHOT)
    assert {thread.name for thread in threading.enumerate()} == before
    assert up.service.alarms() == ()
    up.service.stop()


def test_the_targets_are_the_nodes_that_run(running: Running, tmp_path: Path) -> None:
    path = tmp_path / "nodes.json"
    umask = os.umask(0o077)
    try:
        running.loop(SNAPSHOT)
        wait(path.exists)
    finally:
        os.umask(umask)
    found = json.loads(path.read_text())
    assert [target["labels"]["node"] for target in found] == ["cpu1", "gpu1", "gpu2"]
    assert found[1] == {
        "targets": ["10.0.0.9:9100"],
        "labels": {
            "node": "gpu1", "pool": "gpu", "claim": "c-gpu1", "provider": "sandbox", "region": "local", "zone": "a",
            "type": "g4", "market": "on-demand", "price": "3.06",
        },
    }  # fmt: skip
    assert stat.S_IMODE(path.stat().st_mode) == 0o644, "Prometheus is another user"
    running.settings = running.settings.model_copy(update={"exporter_ports": (9100, 9400)})
    running.loop(replace(SNAPSHOT, claims=CLAIMS[:1]))
    wait(lambda: len(json.loads(path.read_text())) == 1)
    assert json.loads(path.read_text())[0]["targets"] == ["10.0.0.9:9100", "10.0.0.9:9400"]
    running.loop(replace(SNAPSHOT, claims=()))
    wait(lambda: json.loads(path.read_text()) == [])


def test_an_address_of_ipv6_has_brackets() -> None:
    assert json.loads(targets_text([replace(CLAIMS[0], address="fd00::9")], [9100]))[0]["targets"] == ["[fd00::9]:9100"]
    assert targets_text([replace(CLAIMS[0], address="")], [9100]) == "[]\n"


@pytest.mark.parametrize("path", ["/dev/full/nodes.json", "/proc/nodes.json", "/no/such/folder/nodes.json"])
def test_a_file_that_cannot_be_written_is_an_alarm(path: str) -> None:
    targets = TargetsFile(Path(path))
    targets.update((), (9100,))
    assert targets.alarm.startswith(f"the targets for Prometheus cannot be written to {path} ([metrics] file_sd): ")
    assert ("(as root: install -d -o " in targets.alarm) == (path != "/dev/full/nodes.json")


def test_a_full_disk_leaves_the_old_file_and_is_over_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    targets = TargetsFile(tmp_path / "nodes.json")
    targets.update(CLAIMS[:1], (9100,))
    old = (tmp_path / "nodes.json").read_text()
    real = os.open

    def full(path: object, *words: int) -> int:
        return real("/dev/full", os.O_WRONLY) if str(path).endswith(".new") else real(str(path), *words)

    monkeypatch.setattr(os, "open", full)
    monkeypatch.setattr(os, "fchmod", lambda *_: None)
    targets.update((), (9100,))
    assert "No space left on device" in targets.alarm
    assert (tmp_path / "nodes.json").read_text() == old
    monkeypatch.undo()
    targets.update((), (9100,))
    assert (targets.alarm, (tmp_path / "nodes.json").read_text()) == ("", "[]\n")


def test_a_fault_is_an_alarm_until_it_is_over(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    counters = running.service._counters

    def fail(_reader: object) -> None:
        raise StoreUnavailable("the database is gone")

    running.loop(SNAPSHOT)
    wait(lambda: b"burstd_claims" in running.get()[1])
    monkeypatch.setattr(counters, "read_record", fail)
    running.clock.time = NOW + 5
    running.loop(replace(SNAPSHOT, now=NOW + 5))
    wait(lambda: running.service.alarms() == ("the record cannot be read for the metrics: the database is gone",))
    assert b"snapshot_age_seconds 0.000\n" in running.get()[1], "the snapshot is shown all the same"
    monkeypatch.setattr(counters, "read_record", lambda _: 1 / 0)
    running.loop(SNAPSHOT)
    wait(lambda: any("ZeroDivisionError" in alarm for alarm in running.service.alarms()))
    monkeypatch.undo()
    running.loop(SNAPSHOT)
    wait(lambda: not running.service.alarms())
