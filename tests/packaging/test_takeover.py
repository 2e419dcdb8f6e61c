"""docs/two-heads.md by its commands: a second head is set up, and an upgrade by takeover under running jobs."""

from __future__ import annotations

import json
import secrets
import shlex
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import make_url

from burstd.db.database import database_url
from burstd.db.migrate import SCHEMA_VERSION
from burstd.node.ssh.key_pair import ensure_ssh_key
from providers.sandbox.boxes.boot.description import BindMount, BoxFile
from providers.sandbox.boxes.box import BoxSpec
from providers.sandbox.boxes.images.rootfs import ensure_rootfs
from providers.sandbox.boxes.lab import Lab
from providers.sandbox.boxes.network import LabNetwork
from providers.sandbox.cloud.control import CloudServerClient, start_server, stop_server
from tests.db.conftest import postgresql_server
from tests.docs.blocks import Block, shell_blocks
from tests.lab import programs, slurm_files
from tests.lab.deb import with_migration
from tests.lab.guard import LabWatchdog
from tests.lab.patience import patience_s
from tests.lab.remains import remains
from tests.lab.site import CPU, TYPES
from tests.lab.ssh_store import DATA, SshStore
from tests.packaging.test_deb import RELEASE, deb
from tests.systemd.pid1 import SystemdBox, cgroup2, systemd_in

__all__ = ["deb", "postgresql_server"]

pytestmark = [pytest.mark.boxes, pytest.mark.slurm, pytest.mark.thorough]

DOCUMENT = programs.PROJECT / "docs" / "two-heads.md"
HEADS = {"head1": "10.77.0.2", "head2": "10.77.0.3"}
NEWER, SCHEMA = "9.0", "9000"
_VERSION = version("burstd")
_SLURM = programs.PROJECT / "config" / "slurm"
_BURST_BUFFER = ("burst_buffer.lua", "burst_buffer.conf")
_JOBS = "scontrol -o show jobs"
_APT = 'APT::Get::Assume-Yes "true";\nDpkg::Options { "--force-unsafe-io"; };\nAPT::Sandbox::User "root";\n'
_SETTINGS = f"""cluster = "lab"
[daemon]
database = "postgresql://burstd@/postgres?host=/srv/postgresql&options=-csearch_path%3Dtakeover"
tick_s = 2.0
poll_s = 1.0
cloud_poll_s = 3.0
[slurm]
conf_server = "{",".join(HEADS.values())}"
keep_partitions = ["onprem"]
resume_timeout_s = 60
suspend_timeout_s = 5
[providers.sandbox]
kind = "sandbox"
url = "http://10.77.0.1:8470"
token_file = "/etc/burstd/token"
image = "node"
[pools.cpu]
nodes = "{CPU.slots[0][:-1]}[1-{len(CPU.slots)}]"
partitions = ["burst"]
cpus = 2
memory = 1000
features = ["cloud"]
offers = [{{ provider = "sandbox", instance_types = ["c2*"] }}]
[policies]
chain = ["backlog", "idle", "limits"]
[policies.idle]
keep_alive_s = 2
[staging]
store = "near"
bandwidth = "4MB"
[staging.stores.near]
kind = "ssh"
host = "10.77.0.5"
user = "burst"
key_file = "/etc/burstd/store.key"
node_key_file = "/etc/burstd/node.key"
known_hosts_file = "/etc/burstd/known_hosts"
path = "{DATA}"
"""
_STAGED = """#!/bin/sh
#BURST stage_in big
#BURST stage_out . to results
cp "$BURST_IN/big/a.txt" "$BURST_OUT"
"""
_WORK = "trap 'exit 0' USR1; echo begun; while :; do sleep 0.2; done"
_REFUSED = (
    f"was written by a newer burstd (schema {SCHEMA}; this one knows up to {SCHEMA_VERSION}); install that version "
    "again, or restore the backup that you made before the upgrade."
)


class TwoHeads:
    """Two hosts with systemd and shared storage, a cloud and a store; the first one runs slurmctld and burstd."""

    def __init__(self, folder: Path, database: Path, packages: Path) -> None:
        """``database``: folder of PostgreSQL's socket; ``packages``: has older.deb and newer.deb."""
        self.state = folder / "lab"
        self.lab = Lab(self.state, LabNetwork(f"u{secrets.token_hex(4)}"))
        self._store = SshStore(self.state, lab=self.lab, release=RELEASE)
        self._heads: dict[str, SystemdBox] = {}
        shared = {"/shared": self.state / "shared", "/home": self.state / "home", "/srv/postgresql": database}
        self._binds = [BindMount(there, here, read_only=False) for here, there in shared.items()]
        self._binds.append(BindMount(packages, "/root/packages"))

    def up(self, stack: ExitStack) -> None:
        """Ends with the stack."""
        for shared in ("shared/slurmctld", "home"):
            (self.state / shared).mkdir(parents=True)
        stack.callback(LabWatchdog(self.state).end)
        stack.callback(self.lab.down)
        self.lab.up()
        self._store.up()
        rootfs = ensure_rootfs(RELEASE)
        self._start_cloud(stack, [programs.site_image(rootfs), rootfs.path])
        once = "rm -rf /run/burstd /var/spool/burstd; chown slurm: /shared/slurmctld; ssh-keygen -qA"
        files = {"head1": [*self._common_files(), *self._files_of_the_first()], "head2": self._common_files()}
        for name, address in HEADS.items():
            services = [slurm_files.prepare(), ["sh", "-c", once]]
            spec = BoxSpec(
                name, address, [rootfs.path], services=services, binds=self._binds, files=files[name], ssh=False
            )
            self.lab.start(spec)
        for name in HEADS:
            self.lab.box(name).wait_booted()
            self._heads[name] = stack.enter_context(systemd_in(self.lab.box(name), mask=("slurmd",)))
            self.put_package(name, "older")
            self.sh(name, "systemctl start munge ssh")
        # It runs since the boot, and has power saving off: burstd's programs were not there.
        self.sh("head1", "apt install ./burstd_*.deb; systemctl restart slurmctld")
        self.sh("head1", "systemctl enable --now burstd.socket burstd burstd-user-worker.socket")

    def put_package(self, head: str, which: str) -> None:
        """Puts a package where the page has it."""
        self.sh(head, f"ln -sf packages/{which}.deb burstd_1.deb")

    def _common_files(self) -> list[BoxFile]:
        public = ensure_ssh_key(self.state / "root_key")
        return [
            BoxFile("/etc/munge/munge.key", "k" * 64, 0o400, "munge:munge"),
            BoxFile("/etc/hosts", slurm_files.hosts([*HEADS.items()])),
            BoxFile("/etc/apt/apt.conf.d/90test", _APT),
            BoxFile("/root/.ssh/id_ed25519", (self.state / "root_key").read_bytes(), 0o600),
            BoxFile("/root/.ssh/authorized_keys", f"{public}\n", 0o600),
            BoxFile("/root/.ssh/config", "StrictHostKeyChecking accept-new\n"),
        ]

    def _files_of_the_first(self) -> list[BoxFile]:
        conf = slurm_files.slurm_conf(
            RELEASE, [CPU], [("op1", "10.77.0.11")], "", f"{programs.PREFIX}/bin",
            "BurstBufferType=burst_buffer/lua\nStateSaveLocation=/shared/slurmctld",
        )  # fmt: skip
        hosts = "\n".join(f"SlurmctldHost={name}({address})" for name, address in HEADS.items())
        texts = {
            "slurm/slurm.conf": conf.replace("SlurmctldHost=head()", hosts),
            "slurm/cgroup.conf": slurm_files.cgroup_text(RELEASE) or "",
            **{f"slurm/{name}": (_SLURM / name).read_text(encoding="utf-8") for name in _BURST_BUFFER},
        }
        of_burstd = {
            "burstd.toml": _SETTINGS,
            "token": (self.state / "token").read_text(encoding="ascii"),
            "store.key": self._store.key.read_text(encoding="ascii"),
            "node.key": self._store.node_key.read_text(encoding="ascii"),
            "known_hosts": self._store.known_hosts.read_text(encoding="ascii"),
        }
        return [
            *(BoxFile(f"/etc/{name}", content) for name, content in texts.items()),
            *(BoxFile(f"/etc/burstd/{name}", content, 0o640, "root:slurm") for name, content in of_burstd.items()),
            BoxFile("/var/lib/burstd/.pgpass", "", 0o600, "slurm:slurm"),
        ]

    def _start_cloud(self, stack: ExitStack, layers: Sequence[Path]) -> None:
        token, config, network = self.state / "token", self.state / "cloud.toml", self.lab.network
        token.touch(mode=0o600)
        token.write_text(secrets.token_urlsafe(24), encoding="ascii")
        config.write_text(
            f'state = "{self.state}"\ntoken_file = "{token}"\nport = 8470\n[lab]\nname = "{network.name}"\n'
            f'subnet = "{network.subnet}"\nnamespace = "{network.namespace}"\n'
            f"[images.node]\nlayers = {json.dumps([str(layer) for layer in layers])}\n"
            f"[cloud]\nboot_seconds = 0.3\n{TYPES}",
            encoding="utf-8",
        )
        start_server(config)
        stack.callback(stop_server, self.state)

    def sh(self, head: str, text: str, user: str = "root") -> str:
        """As a person pastes it; the first command that fails ends it."""
        home = "/root" if user == "root" else f"/home/{user}"
        words = ["env", f"--chdir={home}", f"HOME={home}", "COLUMNS=1000", "bash", "-eu", "-o", "pipefail", "-c", text]
        become = [] if user == "root" else ["runuser", "-u", user, "--"]
        done = self._heads[head].run([*become, *words], check=False, timeout=patience_s(200))
        assert done.returncode == 0, (
            f"{text}\n{done.stdout}{done.stderr}\n{self._heads[head].journal('burstd')[-3000:]}"
        )
        return done.stdout

    def wait(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        """Returns when the condition holds."""
        end = time.monotonic() + patience_s(timeout_s)
        while not condition():
            said = "" if time.monotonic() < end else "\n".join(self.sh(h, "burstctl status; squeue") for h in HEADS)
            assert time.monotonic() < end, f"not within {patience_s(timeout_s):.0f} s: {what}\n{said}"
            time.sleep(0.2)

    def wait_status(self, head: str, words: str, timeout_s: float = 30) -> None:
        """Returns when ``burstctl status`` of a head says this."""
        self.wait(lambda: words in self.sh(head, "burstctl status"), timeout_s, f"{head} says {words}")

    def wait_without_alarms(self) -> None:
        """Returns when neither head has one."""
        self.wait(lambda: "!" not in "".join(self.sh(head, "burstctl status") for head in HEADS), 60, "no alarm")

    def jobs(self) -> dict[str, dict[str, str]]:
        """All jobs by their numbers, as words of ``scontrol show job``."""
        lines = self.sh("head1", _JOBS).splitlines()
        # More than one line: the directives of a job whose data is staged.
        rows = [dict(w.split("=", 1) for w in ln.split() if "=" in w) for ln in lines if ln.startswith("JobId=")]
        return {row["JobId"]: row for row in rows}

    def wait_jobs(self, jobs: Sequence[str], state: str, timeout_s: float = 60) -> None:
        """Returns when all of them are in a state."""
        self.wait(lambda: {self.jobs()[job]["JobState"] for job in jobs} == {state}, timeout_s, f"{jobs} {state}")


@pytest.fixture(scope="module")
def sql(postgresql_server: str) -> Iterator[Callable[[str], list[Any]]]:
    """Asks the heads' database."""
    engine = create_engine(database_url(f"{postgresql_server}&options=-csearch_path%3Dtakeover"))

    def rows(question: str) -> list[Any]:
        with engine.connect() as connection:
            return list(connection.execute(text(question)).scalars())

    yield rows
    engine.dispose()


@pytest.fixture(scope="module")
def site(deb: Path, postgresql_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoHeads]:
    if cgroup2() is None:
        pytest.skip("systemd needs cgroup v2, and this machine has none mounted")
    folder, database = tmp_path_factory.mktemp("takeover"), Path(str(make_url(postgresql_server).query["host"]))
    # In a box burstd is slurm, and not root.
    database.chmod(0o711)
    (folder / "packages").mkdir()
    shutil.copy(deb, folder / "packages" / "older.deb")
    with_migration(deb, NEWER, SCHEMA, folder / "packages" / "newer.deb")
    made = TwoHeads(folder, database, folder / "packages")
    with ExitStack() as stack:
        made.up(stack)
        yield made
    assert not remains(made.lab.network.name, made.state)


def _blocks(section: str) -> list[Block]:
    return [block for block in shell_blocks(DOCUMENT) if block.section == section]


def test_a_second_head_by_the_page(site: TwoHeads) -> None:
    for block in _blocks("Setting it up"):
        site.sh(block.user, block.text)
    site.wait_status("head1", "standby: head2, seen ")
    site.wait_status("head2", "standby on head2: the leader is head1 since ")
    site.wait_without_alarms()


def _refuse_the_old_version(site: TwoHeads) -> None:
    """On the first head, which has it still, with the second one leading."""
    site.sh("head1", "systemctl start burstd.socket burstd")
    site.wait_status("head1", _REFUSED)
    site.wait_status("head2", "head1 could not take over: The database ")
    site.sh("head2", "systemctl stop burstd.socket burstd")
    tried = "journalctl -q -o cat -u burstd | grep -c 'this head cannot try to lead.*was written by a newer' || true"
    site.wait(lambda: site.sh("head1", tried) == "1\n", 30, "the old version has tried")
    site.sh("head2", "systemctl start burstd.socket burstd")
    site.wait_status("head2", f"burstd {NEWER} on lab, up ")
    site.sh("head1", "systemctl stop burstd.socket burstd")


def test_an_upgrade_by_takeover_under_running_jobs(site: TwoHeads, sql: Callable[[str], list[Any]]) -> None:
    submit = f"sbatch --parsable -p burst -c2 --mem=500 --chdir=/var/tmp --wrap {shlex.quote(_WORK)}"
    jobs = [site.sh("head1", submit, "ada").strip() for _ in range(2)]
    site.wait_jobs(jobs, "RUNNING")
    blocks = _blocks("Upgrading")
    assert [(block.user, "stop" in block.text) for block in blocks] == [
        ("head2", False), ("head1", True), ("head1", False)
    ]  # fmt: skip
    for head in HEADS:
        site.put_package(head, "newer")

    site.sh("head2", blocks[0].text)
    site.wait_status("head1", f" has burstd {_VERSION}, and head2 has {NEWER}")
    assert sql("SELECT version_num FROM alembic_version") == [SCHEMA_VERSION]
    site.sh("head1", "mkdir big; echo hello >big/a.txt; head -c 96M /dev/urandom >big/large", "ada")
    staged = site.sh("head1", f"sbatch --parsable -p burst -c1 --mem=100 <<'END'\n{_STAGED}END", "ada").strip()
    status = f"burstctl --json stage status {staged} || true"
    site.wait(lambda: '"uploading"' in site.sh("head1", status), 30, "its input is on its way")

    site.sh("head1", blocks[1].text)
    site.wait_status("head2", f"burstd {NEWER} on lab, up ")
    assert sql("SELECT version_num FROM alembic_version") == [SCHEMA]
    _refuse_the_old_version(site)

    site.sh("head1", blocks[2].text)
    site.wait_status("head1", f"burstd {NEWER} on lab, standby on head1: the leader is head2 since ")
    site.wait_without_alarms()
    assert {site.jobs()[job]["JobState"] for job in jobs} == {"RUNNING"}
    site.sh("head1", f"scancel --batch --signal=USR1 {' '.join(jobs)}")
    site.wait_jobs([*jobs, staged], "COMPLETED", 90)
    site.wait(lambda: site.sh("head1", "cat results/a.txt || true", "ada") == "hello\n", 30, "its output is home")
    assert {site.jobs()[job]["Restarts"] for job in [*jobs, staged]} == {"0"}
    assert sql("SELECT count(*) FROM upgraded") == [1]
    machines = [row.tags["burstd-claim"] for row in CloudServerClient(site.state).bill().rows]
    assert sorted(machines) == sorted(sql("SELECT id FROM claim"))
    assert sql("SELECT count(*) FROM event WHERE subject LIKE 'orphan:%'") == [0]
