"""What a job used of its node, on real Slurm: a job of known load, its figures on the node and after its end."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from burstd.cli.session import ExitCode
from providers.sandbox.boxes.box import Box
from tests.e2e.sites import claims_of, node_box
from tests.lab.base_site import CONFIG
from tests.lab.site import Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

# Half of one CPU since the job's begin, as far as this machine has it to spare, and 300 MiB that stay in memory. It
# notes its age and its CPU time.
LOAD = """exec python3 - <<END
import os, time
held = bytearray(300 << 20)
held[::4096] = b"x" * len(held[::4096])
with open("/proc/self/stat") as file:
    start = int(file.read().rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
def age():
    return time.clock_gettime(time.CLOCK_BOOTTIME) - start
with open("load", "w", buffering=1) as notes:
    while age() < 500:
        until = age() + 0.05
        while time.process_time() < 0.5 * age() < 0.5 * until:
            pass
        notes.write(f"{age()} {time.process_time()}\\n")
        time.sleep(0.01)
END
"""
HELD_MIB = pytest.approx(305, abs=10)
"""With the interpreter's own."""
SMI = """#!/bin/sh
case "$*" in
--query-gpu=uuid,*) echo "GPU-aa-0, 0, Tesla V100, 70, 1234, 16384"; echo "GPU-aa-1, 1, Tesla V100, 0, 5, 16384" ;;
"-q -x") printf '<nvidia_smi_log>\\n<gpu id="00000000:19:00.0">\\n</gpu>\\n</nvidia_smi_log>\\n' ;;
esac
"""
IDLE_SMI = SMI.replace("70, 1234", "0, 1234")
MESSAGES = "/var/log/slurm/messages"
"""What burstd's hook got."""
FOLDER = "/var/tmp"  # noqa: S108 - of a machine that ends with the job
READ = """import glob, sys, zlib
for file in glob.glob(f"/run/burstd/sampler/jobs/{sys.argv[1]}-*.use"):
    print(zlib.decompress(open(file, "rb").read()).decode())
"""


def kept_figures(box: Box, job: str) -> dict[str, Any]:
    """What its node keeps of a job that ran once; empty: nothing so far."""
    lines = box.run(["python3", "-c", READ, job]).stdout.splitlines()
    return json.loads(lines[0]) if lines else {}


def test_a_job_of_known_load(site: Site, figure: Callable[[str], None]) -> None:
    job = site.submit(f"-p burst -c2 --mem=600 --gres=gpu:v100:1 -t9 -D {FOLDER}", LOAD)
    site.wait_job(job, ["RUNNING"])
    box = node_box(site, claims_of(site, job)[-1]["slot"])
    box.run(["tee", "/usr/local/bin/smi"], input=SMI)
    box.run(["install", "/usr/local/bin/smi", "/usr/local/bin/nvidia-smi"])
    found: dict[str, Any] = {}

    def measured() -> bool:
        found.update(kept_figures(box, job))
        return bool(found.get("gpus")) and found["at"] - found["start"] > 12

    site.wait(measured, 90, "some seconds are measured")
    notes = [tuple(map(float, line.split())) for line in box.run(["cat", f"{FOLDER}/load"]).stdout.splitlines()[:-1]]
    length = found["at"] - found["start"]
    _, own = min(notes, key=lambda note: abs(note[0] - length))
    figure(f"CPU seconds of a job in {length:.1f} s: {own:.2f}, measured {found['cpu'][0]:.2f}")
    assert found["cpu"][0] / length == pytest.approx(own / length, abs=0.03)
    site.cluster.sh(f"scontrol suspend {job}")
    site.wait(lambda: kept_figures(box, job)["suspended_s"] > 2, 60, "that the job is suspended")
    site.cluster.sh(f"scontrol resume {job}; scancel {job}")
    site.wait(lambda: bool((site.burstctl_json("job", "show", job)["use"] or {}).get("ended")), 60, "the last figures")
    shown = json.loads(site.burstctl("job", "show", job, "--json", user="ada").stdout)["use"]
    (node,) = shown["nodes"]
    (gpu,) = node["gpus"]
    assert node["cpu_s"] >= round(found["cpu"][0], 2), "the last figures came after the job's end"
    assert node["memory_peak_mib"] == HELD_MIB
    assert (gpu["uuid"], gpu["utilisation_mean"], gpu["utilisation_peak"]) == ("GPU-aa-0", 70.0, 70.0)
    assert (gpu["memory_peak_mib"], gpu["idle_s"], gpu["share"]) == (1234, 0.0, "whole")
    assert (node["cpus"], node["memory_mib"]) == (2, 600)
    site.burstctl("job", "show", job, "--svg", "/home/ada/use.svg", user="ada")
    assert f"{node['node']} CPUs</text>" in site.cluster.head.run(["cat", "/home/ada/use.svg"]).stdout
    assert "V100" in site.burstctl("job", "show", job, user="ada").stdout
    refused = site.burstctl("job", "show", job, user="bob", check=False)
    assert (refused.returncode, refused.stdout) == (ExitCode.FORBIDDEN, "")


# As an administrator lets burstd in; it prints the node's host key.
LET_IN = """install -d -m 0700 /root/.ssh && cat >/root/.ssh/authorized_keys && ssh-keygen -A >&2
mkdir -p /run/sshd && /usr/sbin/sshd && cat /etc/ssh/ssh_host_ed25519_key.pub"""


def test_a_job_on_a_node_of_the_site(site: Site) -> None:
    box = site.cluster.lab.box("op1")
    key = site.cluster.sh("ssh-keygen -y -f /var/lib/burstd/ssh_key")
    site.write("/etc/ssh/ssh_known_hosts", f"op1 {box.run(['sh', '-c', LET_IN], input=key).stdout}")
    job = site.submit(f"-p onprem -w op1 -c1 --mem=600 -t9 -D {FOLDER}", LOAD)
    site.wait_job(job, ["RUNNING"])
    toml = site.burstd_toml()
    site.write(CONFIG, toml.replace("[sampler]\n", '[sampler]\nown_nodes = ["op*"]\n'))
    site.burstctl("config", "reload")
    site.wait(lambda: kept_figures(box, job).get("memory_peak_mib") == HELD_MIB, 60, "that all its memory is measured")
    site.cluster.sh(f"scancel {job}")
    site.wait(lambda: bool((site.burstctl_json("job", "show", job)["use"] or {}).get("ended")), 60, "the last figures")
    (node,) = json.loads(site.burstctl("job", "show", job, "--json", user="ada").stdout)["use"]["nodes"]
    assert (node["node"], node["cpus"], node["memory_peak_mib"]) == ("op1", 1, HELD_MIB)
    site.write(CONFIG, toml)
    site.burstctl("config", "reload")
    pid = "/run/burstd/sampler/pid"
    site.wait(lambda: box.run(["test", "-e", pid], check=False).returncode == 1, 60, "that its sampler has ended")


@pytest.mark.thorough
def test_a_job_that_does_not_use_its_gpu_is_warned_and_then_cancelled(site: Site) -> None:
    """Its CPU is in use. A restart of burstd fetches figures at once, where a test cannot wait for minutes."""
    site.write("/usr/local/bin/burstd-hook", f"#!/bin/sh\ncat >>{MESSAGES}\n", 0o755)
    idle = site.submit(f"-p burst -c2 --mem=600 --gres=gpu:v100:1 -t9 -D {FOLDER}", LOAD)
    site.wait_job(idle, ["RUNNING"])
    slot = claims_of(site, idle)[-1]["slot"]
    box = node_box(site, slot)
    box.run(["tee", "/usr/local/bin/smi"], input=IDLE_SMI)
    box.run(["install", "/usr/local/bin/smi", "/usr/local/bin/nvidia-smi"])

    def idle_s() -> float:
        gpus = kept_figures(box, idle).get("gpus", ())
        return float(gpus[0]["idle_now_s"]) if gpus else 0.0

    def comment() -> str:
        return site.cluster.sh(f"squeue -h -j {idle} -o %k").strip()

    site.wait(lambda: idle_s() > 5, 90, "some seconds are measured")
    site.kill_burstd("KILL")
    site.start_burstd()
    site.wait(lambda: comment().startswith("burstd: idle GPUs: its GPU has been idle since "), 60, "the warning")
    assert "; the job is cancelled at " in comment()
    status = site.burstctl_json("status")["idle_gpus"]
    assert (status["jobs"], status["gpus"]) == (1, 1)
    assert status["cost_per_hour"]
    assert "idle" in site.api(f"/v1/nodes/{slot}")["node"]["gpus"]
    assert "1 GPU of 1 job idle" in " ".join(site.burstctl("status").stdout.split())
    explained = site.burstctl("explain", idle, user="ada").stdout
    assert "its GPU has been idle since" in " ".join(explained.split())
    assert site.cluster.sh(f"squeue -h -j {idle} -o %T").strip() == "RUNNING"
    warned = idle_s()
    site.wait(lambda: idle_s() > warned + 4, 60, "more seconds are measured")
    site.kill_burstd("KILL")
    site.start_burstd()
    site.wait(lambda: "CANCELLED" in site.cluster.sh(f"scontrol show job {idle}"), 60, "the end")
    events = [
        event["new"] for event in site.api("/v1/events?limit=10000")["events"] if event["subject"] == f"job:{idle}"
    ]
    assert [new for new in events if new.startswith("idle gpus")] == ["idle gpus", "idle gpus: cancelled"]
    assert "; burstd cancelled the job at " in " ".join(site.burstctl("explain", idle, user="ada").stdout.split())

    def news() -> list[tuple[str, str]]:
        lines = site.cluster.head.run(["cat", MESSAGES], check=False).stdout.splitlines()
        return [(told["user"], told["title"]) for told in map(json.loads, lines)]

    titles = [f"job {idle} does not use its GPUs", f"job {idle} is cancelled"]
    site.wait(lambda: news() == [("ada", title) for title in titles], 30, "the news")
