"""What facts.sh finds out of mounts and container runtimes."""

from __future__ import annotations

import socket
import subprocess
from importlib.resources import files
from pathlib import Path

from burstd.node.facts import FactsRequest, MachineFacts, facts_script, parse_facts

MOUNTINFO = r"""
21 28 0:19 / /sys rw,nosuid shared:7 - sysfs sysfs rw
28 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
40 22 0:36 / /proc/sys/fs/binfmt_misc rw,relatime shared:14 - autofs systemd-1 rw,fd=29
50 28 0:45 / /home rw,relatime shared:20 - autofs /etc/auto.home rw,fd=5
51 50 0:46 / /home/ada rw,relatime shared:21 - nfs4 nas:/home/ada rw,vers=4.2
52 28 0:47 /sub /my\040data rw,relatime shared:22 master:3 - nfs nas:/my\040data rw,vers=3
53 28 0:48 / /scratch rw - lustre 10.0.0.1@tcp:10.0.0.2@tcp:/scratch rw
54 28 0:49 / /mnt/sshfs rw shared:9 - fuse.sshfs ada@far:/x rw
55 28 0:50 / /run/user/0/gvfs rw shared:9 - fuse.gvfsd-fuse gvfsd-fuse rw
56 50 0:51 / /cvmfs rw shared:9 - autofs /etc/auto.cvmfs rw
57 56 0:52 / /cvmfs/soft ro shared:9 - fuse cvmfs2 ro
"""


def facts(folder: Path, programs: dict[str, str], within_s: int) -> MachineFacts:
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)
    (folder / "mountinfo").write_text(MOUNTINFO.lstrip())
    script = facts_script(FactsRequest(within_s=within_s)).replace("/proc/self/mountinfo", f"{folder}/mountinfo")
    script = script.replace("PATH=/usr/sbin", f"PATH={folder}:/usr/sbin")
    done = subprocess.run(["sh"], input=script, capture_output=True, text=True, check=True, timeout=60)
    found = parse_facts(done.stdout, asked=0, answered=0)
    assert found is not None
    return found


def test_mounts_of_the_network_are_named_without_being_asked(tmp_path: Path) -> None:
    assert facts(tmp_path, {}, 20).mounts == {
        "/home": "autofs /etc/auto.home",
        r"/my\040data": r"nfs nas:/my\040data",
        "/scratch": "lustre 10.0.0.1@tcp:10.0.0.2@tcp:/scratch",
        "/mnt/sshfs": "fuse.sshfs ada@far:/x",
        "/cvmfs": "autofs /etc/auto.cvmfs",
    }


def test_container_runtimes_one_of_which_hangs(tmp_path: Path) -> None:
    programs = {
        "apptainer": "exec sleep 600",
        "singularity": "exec sleep 600",
        "enroot": '[ "$1" = version ] && echo 3.4.1',
        "podman": "echo podman version 4.3.1",
        "docker": '[ "$1" = info ] && echo "runc.v2 nvidia runc " || echo "Docker version 24.0.5, build ced0996"',
    }
    assert facts(tmp_path, programs, 5).runtimes == {
        "apptainer": "", "singularity": "", "enroot": "3.4.1", "podman": "4.3.1", "docker": "24.0.5",
        "docker-nvidia": "",
    }  # fmt: skip


def test_names_of_modules_are_printed_a_line_at_a_time() -> None:
    """What the script asks side by side goes into one pipe: a line that came in two parts would hold another's."""
    text = files("burstd.node").joinpath("scripts", "facts.sh").read_text(encoding="utf-8")
    start = text.index("module_tree() {")
    function = text[start : text.index("\n}\n", start) + 3]
    names = 'timeout() { awk \'BEGIN { for (i = 1; i <= 900; i++) print "GCC-toolchain/" i ".3.0" }\'; }'
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    script = f'within=1\nsay() {{ printf "%s=%s\\n" "$1" "$2"; }}\n{names}\n{function}\nmodule_tree'
    running = subprocess.Popen(["sh", "-c", script], stdout=theirs.fileno())
    theirs.close()
    with ours:
        written = list(iter(lambda: ours.recv(1 << 20), b""))
    assert running.wait(60) == 0
    assert b"".join(written).count(b"tree_module=GCC-toolchain/") == 900
    assert all(part.endswith(b"\n") for part in written)


def test_programs_of_slurmd_are_there_where_a_pattern_has_one(tmp_path: Path) -> None:
    for name, mode in (("10-scratch", 0o755), ("readme", 0o644)):
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    patterns = [f"{tmp_path}/{word}" for word in ("*-scratch", "10-scratch", "readme", "*.sh", "10-scratch/x")]
    homes = [str(tmp_path), f"{tmp_path}/ada", f"{tmp_path}/readme"]
    done = subprocess.run(["sh"], input=facts_script(FactsRequest(prologs=patterns, homes=homes)), capture_output=True,
                          text=True, check=True, timeout=60)  # fmt: skip
    found = parse_facts(done.stdout, asked=0, answered=0)
    assert found is not None
    assert found.prologs == set(patterns[:2])
    assert found.homes == {homes[0]: True, homes[1]: False}, "of a file nothing is said"


def test_of_homes_that_autofs_lacks_nothing_is_known() -> None:
    mounts = "mount=/home autofs /etc/auto.home\nmount=/users nfs4 nas:/users\n"
    found = parse_facts(f"{mounts}home=ok /home/bob\nhome=- /home/ada\nhome=- /users/eve\nend=1\n", asked=0, answered=0)
    assert found is not None
    assert found.homes == {"/home/bob": True, "/users/eve": False}
