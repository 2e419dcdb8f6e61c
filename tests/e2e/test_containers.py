"""Jobs in containers, end to end on the oldest and the newest Slurm: Apptainer is Debian's, the images are small."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from burstd.staging.submission.container import NO_PROGRAM
from providers.sandbox.boxes.errors import SandboxError
from providers.sandbox.boxes.images.rootfs import ensure_rootfs
from tests.e2e.sites import MISSED_SOON, QUICK, events, site_up, wait_all_gone
from tests.lab.base_site import CONFIG
from tests.lab.containers import apptainer
from tests.lab.programs import PREFIX
from tests.lab.site import GPU, Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

IMAGE = "images/my tools,1:2.sif"
BUILD = f"""set -e
mkdir -p images root/bin root/etc root/tmp root/proc root/dev root/sys root/home root/var
for file in /bin/bash /bin/cat /bin/sleep $(ldd /bin/bash /bin/cat | grep -o '/[^ :]* ' | sort -u); do
  mkdir -p root$(dirname $file); cp -L $file root$file
done
echo in-the-image >root/etc/os-release
apptainer -q build '{IMAGE}' root
rm -r root
mkdir -p data/set
echo hello >data/set/a.txt
"""
SCRIPT = f"""#!/bin/bash -u
#SBATCH --job-name=boxed
#BURST container '{IMAGE}'
#BURST stage_in data/set
#BURST stage_out . to results/%j
cat /etc/os-release "$BURST_IN/set/a.txt" > "$BURST_OUT/said"
printf '<%s>' "$#" "$@" "$PWD" "$-" > "$BURST_OUT/arguments"
trap 'exit 7' USR1
echo "on $HOSTNAME"
while true; do sleep 0.2; done"""


PLAIN = f"""#!/bin/sh
#BURST stage_in '{IMAGE}' as tools.sif
#BURST stage_out . to results/%j
srun apptainer -q exec --bind "$BURST_OUT" "$BURST_IN/tools.sif" \\
  bash -c 'cat /etc/os-release > "$BURST_OUT/said"'
"""
LIVE = f"#!/bin/sh\napptainer -q exec '{IMAGE}' bash -c 'cat /etc/os-release data/set/a.txt >live'\n"
HOMES = QUICK + '[mounts.trees]\nhome = { path = "/home/{user}" }\n'


@contextmanager
def site_with_image(release: str, shared: Path, **more: str) -> Iterator[Site]:
    try:
        apptainer(ensure_rootfs(release))
    except SandboxError as error:
        pytest.skip(f"Debian unstable has no Apptainer that runs on {release} now: {error}")
    with site_up(release, pools=[GPU], staging="", shared=shared, containers=True, **more) as up:
        done = up.cluster.lab.box("op1").run(["sh", "-c", BUILD], user="ada", cwd="/home/ada", check=False)
        assert done.returncode == 0, done.stderr
        yield up


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The oldest Slurm; its nodes have their own homes."""
    with site_with_image("bookworm", tmp_path_factory.mktemp("shared")) as up:
        yield up


def submit(site: Site, where: str, user: str = "ada", script: str = SCRIPT) -> str:
    """A job with arguments that a shell would change."""
    site.cluster.head.run(["sh", "-c", 'cat > "script.sh"'], user=user, cwd=f"/home/{user}", input=script)
    command = f"sbatch --parsable {where} -c1 --mem=100 -t5 script.sh 'b c' \"it's\" '$HOME' '' '*'"
    return site.cluster.sh(command, user).strip()


def told_to_end(site: Site, job: str, user: str = "ada") -> str:
    """Signals the script in its container once it is about to wait; what it has said, and its exit status."""
    site.wait(lambda: "on " in site.burstctl("job", "logs", job, user=user, check=False).stdout, 60, "it runs")
    site.cluster.sh(f"scancel --batch --signal=USR1 {job}", user)
    site.wait_job(job, ["FAILED"], timeout_s=60)
    assert site.job(job)["ExitCode"] == "7:0"
    site.wait(lambda: "said" in site.cluster.sh(f"ls results/{job}", user, check=False), 60, "its output is home")
    return site.cluster.sh(f"cat results/{job}/said results/{job}/arguments", user)


def test_a_script_runs_in_its_container_in_the_cloud_and_on_premises(site: Site) -> None:
    said = "in-the-image\nhello\n<5><b c><it's><$HOME><><*></home/ada><huB>"
    cloud, home = submit(site, "-p burst --gres=gpu:1"), submit(site, "-p onprem -w op1 --export=NONE")
    plain = submit(site, "-p burst", script=PLAIN)
    assert told_to_end(site, home) == said
    assert told_to_end(site, cloud) == said
    site.wait_job(plain)
    assert site.cluster.sh(f"cat results/{plain}/said", "ada") == "in-the-image\n"
    stored = site.cluster.sh(f"scontrol write batch_script {cloud} -", "ada")
    assert stored.rstrip("\n").split("\n", 1)[1] == SCRIPT.split("\n", 1)[1]
    assert stored.split("\n", 1)[0].endswith(" /bin/bash -u")

    # A colleague who may read the image sends nothing of it again.
    script = SCRIPT.replace(f"'{IMAGE}'", f"'/home/ada/{IMAGE}'").replace("data/set", "/home/ada/data/set")
    again = submit(site, "-p burst", "bob", script)
    assert told_to_end(site, again, "bob").startswith("in-the-image\nhello\n")
    first, other, second = (site.api(f"/v1/stage/{job}")["job"] for job in (cloud, plain, again))
    assert first["bytes_sent"] + other["bytes_sent"] > 1 << 20
    assert (second["bytes_in"], second["bytes_sent"]) == (first["bytes_in"], 0)
    site.cluster.sh(f"chmod go-r '{IMAGE}'", "ada")
    with pytest.raises(AssertionError, match=f"line 3: .*/home/ada/{IMAGE}: Permission denied"):
        submit(site, "-p burst", "bob", script)
    site.cluster.sh(f"chmod go+r '{IMAGE}'", "ada")


def test_a_node_without_apptainer_is_named(site: Site) -> None:
    site.cluster.lab.box("op2").run(["mv", "/usr/bin/apptainer", "/usr/bin/apptainer.away"])
    job = submit(site, "-p onprem -w op2")
    site.wait_job(job, ["FAILED"])
    assert site.job(job)["ExitCode"] == f"{NO_PROGRAM}:0"
    assert "op2 has no apptainer, which #BURST container needs" in site.cluster.sh(f"cat slurm-{job}.out", "ada")

    text = site.burstd_toml().replace("[staging]\n", '[staging]\ncontainer_program = "apptainer-2"\n')
    site.write(CONFIG, text)
    site.signal_burstd("HUP")
    site.wait(lambda: any(e["new"] == "reloaded" for e in events(site, "daemon")), 10, "it is taken")
    job = submit(site, "-p burst")
    reason = "the node has no apptainer-2, which #BURST container needs"
    site.wait(lambda: reason in site.burstctl("stage", "status", job, check=False).stdout, 60, "its start is refused")
    assert site.job(job)["JobState"] == "PENDING"
    site.cluster.sh(f"scancel {job}", "ada")
    wait_all_gone(site)


def test_on_the_newest_slurm_where_nodes_show_the_homes(tmp_path: Path) -> None:
    conf = f"{MISSED_SOON}\nPrologSlurmctld={PREFIX}/bin/burstd-prolog"
    with site_with_image("forky", tmp_path, settings=HOMES, extra_conf=conf) as site:
        boxed, live = submit(site, "-p burst --gres=gpu:1"), submit(site, "-p burst", script=LIVE)
        assert told_to_end(site, boxed).startswith("in-the-image\nhello\n<5><b c>")
        site.wait_job(live)
        assert site.cluster.sh("cat live", "ada") == "in-the-image\nhello\n"
