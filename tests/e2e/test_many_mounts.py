"""Fifty jobs of ten users on ten nodes: each user's home is theirs alone, and no mount is left behind."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from burstd.domain.cloud.offer import Pool
from burstd.domain.slurm.shape import Shape
from providers.sandbox.boxes.box import Box
from tests.e2e.sites import MISSED_SOON, QUICK, STATE, node_box, queue, seconds_until, site_up
from tests.lab import programs
from tests.lab.site import Site
from tests.mounts.test_streams import BY_HAND

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

USERS = {f"user{i}": 3100 + i for i in range(10)}
SLOTS = tuple(f"many{i}" for i in range(1, 11))
JOBS_OF_USER = 5
TYPES = """
[[cloud.types]]
name = "c2.many"
cpus = 2
memory_mib = 2048
price = "0.40"
[cloud.capacity.north]
"c2.many" = 10
"""
SETTINGS = (
    QUICK.replace("keep_alive_s = 2", "keep_alive_s = 600") + '[mounts.trees]\nhome = { path = "/home/{user}" }\n'
)
JOB = """#!/bin/bash
# $1: number
me=$(id -un)
echo "$me $1 $SLURMD_NODENAME" >/home/$me/out/$1
[ "$(cat /home/$me/input)" = "input of $me" ] && [ "$(cut -d' ' -f1,2 /home/$me/out/$1)" = "$me $1" ] || exit 1
while [ ! -e /home/$me/go ]; do sleep 1; done
echo checked >>/home/$me/out/$1
"""
ALONE = "#!/bin/bash\necho $SLURMD_NODENAME >on; while [ ! -e /run/go ]; do sleep 0.2; done; cat input"
"""A job that leaves its stream alone while it waits."""
TAKE_OVER = """
import ctypes, os, signal, sys
sshfs = int(sys.argv[1])
os.kill(sshfs, signal.SIGSTOP)
handle = os.pidfd_open(sshfs)
for number in (0, 1):
    # pidfd_getfd(2)
    os.dup2(ctypes.CDLL(None).syscall(438, handle, number, 0), number)
"""
"""Root of a node takes the stream's descriptors away from sshfs."""


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    pool = Pool("many", SLOTS, ("burst",), Shape(2, 1000, (), frozenset({"cloud"})))
    prolog = f"{MISSED_SOON}\nPrologSlurmctld={programs.PREFIX}/bin/burstd-prolog"
    with site_up(pools=[pool], users=USERS, types=TYPES, settings=SETTINGS, extra_conf=prolog) as up:
        make = 'cd "/home/$1" && echo "input of $1" >input && echo secret >secret && mkdir out && chown -R "$1:" .'
        for user in USERS:
            # Readable by everybody: all that keeps a node's root out is what a stream serves.
            up.cluster.head.run(["sh", "-c", f"{make} && chmod 755 . && chmod 644 secret", "sh", user])
        yield up


def sbatch_line(user: str, words: str) -> str:
    return f"runuser -u {user} -- sbatch --parsable -p burst -t5 --mem=100 -D /home/{user} {words}"


def stream_processes(site: Site) -> dict[str, Counter[str]]:
    """On the head, by program: how many of whom."""
    found: dict[str, Counter[str]] = {"sftp-server": Counter(), "ssh": Counter(), "mount_worker.py": Counter()}
    for line in site.cluster.sh("ps -ww -eo user:32,args").splitlines():
        user, *words = line.split()
        for name in found.keys() & {word.rpartition("/")[2] for word in words[:5]}:
            found[name][user] += 1
    return found


def streams(site: Site) -> list[str]:
    return site.cluster.sh(f"ls {STATE}/mounts").split()


def fuse_mounts(box: Box) -> list[tuple[str, str]]:
    """What is mounted where: the root within the file system, and the path."""
    said = box.run(["grep", "fuse.sshfs", "/proc/self/mountinfo"], check=False).stdout
    return [(row[3], row[4]) for row in map(str.split, said.splitlines())]


def test_root_of_a_node_reaches_files_of_users_with_jobs_there_only(site: Site) -> None:
    site.write("/home/user0/alone.sh", ALONE)
    number = site.cluster.sh(sbatch_line("user0", "--exclusive alone.sh")).strip()
    on = site.cluster.head.path("/home/user0/on")
    site.wait(lambda: on.exists() and bool(on.read_text()), 60, "it runs")
    box = node_box(site, on.read_text().strip())
    mounts = f"/run/burstd/mounts/{USERS['user0']}"
    assert fuse_mounts(box) == [("/", mounts), ("/home/user0", "/home/user0")]
    others = box.run(["sh", "-c", "ls /run/burstd/mounts/*/home; cat /run/burstd/mounts/*/home/user[1-9]/secret; true"])
    assert others.stdout == "user0\n"
    site.write("/home/user0/mine", "mine")
    by_hand = BY_HAND.replace("sys.argv[1], sys.argv[2]", "'/home/user0', '/home/user1'")
    sshfs = box.run(["pgrep", "-f", f"^sshfs .*{mounts}$"]).stdout.strip()
    box.run(["python3", "-c", TAKE_OVER + by_hand, sshfs])
    found = json.loads(box.path("/root/found").read_text())
    box.run(["kill", "-CONT", sshfs])
    assert found["trees"] == ["user0"]
    account = f"user:x:{USERS['user0']}:{USERS['user0']}::/:/\n"
    assert {path: text for path, text in found["read"].items() if text is not None} == {
        "/etc/passwd": account,
        "/home/user0/mine": "mine",
    }
    assert [path for path, written in found["written"].items() if written] == ["/home/user0/x"]
    box.run(["touch", "/run/go"])
    site.wait_job(number)
    assert site.cluster.sh(f"cat /home/user0/slurm-{number}.out") == "input of user0\n"
    site.wait(lambda: not streams(site), 20, "no mount without a job")


@pytest.mark.thorough
def test_fifty_jobs_of_ten_users_on_ten_nodes(site: Site, figure: Callable[[str], None]) -> None:
    site.write("/opt/job.sh", JOB)
    lines = [sbatch_line(user, f"/opt/job.sh {n}") for n in range(JOBS_OF_USER) for user in USERS]
    site.cluster.sh("\n".join(["set -e", *lines]), timeout_s=120)
    room = 2 * len(SLOTS)

    def running() -> list[str]:
        return site.cluster.sh("squeue -h -t running -o '%N %u'").splitlines()

    started_s = seconds_until(site, lambda: len(running()) == room, 120, "every node is full")
    pairs = {(node, user) for node, _, user in (line.partition(" ") for line in running())}
    assert {node for node, _ in pairs} == set(SLOTS)
    assert len(pairs) > 1.5 * len(SLOTS), "users share nodes"
    nodes = {user: sum(of == user for _, of in pairs) for user in USERS}
    ours = {"root": len(pairs)}
    assert stream_processes(site) == {"sftp-server": nodes, "ssh": ours, "mount_worker.py": ours}
    assert len(streams(site)) == len(pairs)
    boxes = {slot: node_box(site, slot) for slot in SLOTS}
    for slot, box in boxes.items():
        users = sorted(user for node, user in pairs if node == slot)
        assert sorted(fuse_mounts(box)) == sorted(
            mount for user in users
            for mount in (("/", f"/run/burstd/mounts/{USERS[user]}"), (f"/home/{user}", f"/home/{user}"))
        )  # fmt: skip
    site.cluster.sh("for user in /home/user*; do touch $user/go; done")
    ended_s = seconds_until(site, lambda: not queue(site, "pending,running,configuring,completing"), 120, "all ended")
    gone_s = seconds_until(site, lambda: not streams(site), 30, "no stream")
    assert not any(stream_processes(site).values())
    assert not [box.name for box in boxes.values() if fuse_mounts(box)]
    for user, uid in USERS.items():
        for n in range(JOBS_OF_USER):
            file = site.cluster.head.path(f"/home/{user}/out/{n}")
            first, second = file.read_text().splitlines()
            assert first.split()[:2] == [user, str(n)]
            assert (second, file.stat().st_uid) == ("checked", uid)
    figure(
        f"{room} jobs of 10 users, {len(pairs)} streams: all run after {started_s:.0f} s; 50 have ended after "
        f"{ended_s:.0f} s more, and the last stream {gone_s:.1f} s later"
    )
