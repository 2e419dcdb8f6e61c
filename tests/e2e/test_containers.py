"""Jobs in containers, end to end on the oldest and the newest Slurm: Apptainer is Debian's, the images are small."""

from __future__ import annotations

import base64
import errno
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from burstd.domain.framework import Framework
from burstd.domain.plugins.shell import CompletedCommand, Shell
from burstd.node.frameworks import framework_failures
from burstd.staging.submission.container import NO_PROGRAM
from providers.sandbox.boxes.box import Box
from providers.sandbox.boxes.errors import SandboxError
from providers.sandbox.boxes.images.rootfs import ensure_rootfs
from tests.e2e.sites import MISSED_SOON, QUICK, events, site_up, wait_all_gone
from tests.lab import image_registry
from tests.lab.base_site import CONFIG, LOG
from tests.lab.containers import CONVERT, IMAGE_ROOT, REGISTRY, apptainer, start_registry
from tests.lab.programs import PREFIX
from tests.lab.site import GPU, Site

pytestmark = [pytest.mark.boxes, pytest.mark.slurm]

IMAGE = "images/my tools,1:2.sif"
BUILD = f"""{IMAGE_ROOT}
mkdir -p images data/set
apptainer -q build '{IMAGE}' root
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
IMAGES = f"""
[staging.images]
registries = ["{REGISTRY}"]
"""
CREDENTIALS = base64.b64encode(b"ada:hidden-word").decode()
HOMES = QUICK + '[mounts.trees]\nhome = { path = "/home/{user}" }\n'


@contextmanager
def site_with_image(release: str, shared: Path, **more: str) -> Iterator[Site]:
    try:
        apptainer(ensure_rootfs(release))
    except SandboxError as error:
        pytest.skip(f"Debian unstable has no Apptainer that runs on {release} now: {error}")
    settings = more.pop("settings", QUICK) + IMAGES
    with site_up(release, pools=[GPU], staging="", shared=shared, containers=True, settings=settings, **more) as up:
        done = up.cluster.lab.box("op1").run(["sh", "-c", BUILD], user="ada", cwd="/home/ada", check=False)
        assert done.returncode == 0, done.stderr
        add_images(up, shared / "home")
        yield up


def add_images(site: Site, homes: Path) -> None:
    """Images for everybody and one for ada in a registry on the head."""
    registry, root = start_registry(site.cluster.head, homes), homes / "ada" / "root"
    image_registry.add_image(registry, "lab/tools", root)
    image_registry.add_image(registry, "lab/faulty", root)
    image_registry.add_image(registry, "lab/negative", root, size=-1)
    image_registry.add_image(registry, "lab/foreign", root, architecture="s390x")
    image_registry.add_image(registry, "lab/private", root, readers=["ada:hidden-word"])
    config = json.dumps({"auths": {f"http://{REGISTRY}": {"auth": CREDENTIALS}}})
    # Small homes have links to where there is more space.
    write = ["sh", "-c", "mkdir elsewhere; ln -s elsewhere .docker; cat >.docker/config.json; touch .apptainer"]
    site.cluster.head.run(write, user="ada", cwd="/home/ada", input=config)


@pytest.fixture(scope="module")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def site(shared_folder: Path) -> Iterator[Site]:
    """The oldest Slurm; its nodes have their own homes."""
    with site_with_image("bookworm", shared_folder) as up:
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


class _BoxShell:
    """As much of a shell of root as the test of a framework uses."""

    def __init__(self, box: Box) -> None:
        self._box = box

    def script(self, text: str, *args: str, input: bytes = b"", timeout_s: float = 30.0) -> CompletedCommand:  # noqa: A002
        assert not input
        done = self._box.run(["sh", "-c", text, "sh", *args], check=False, timeout=timeout_s)
        return CompletedCommand(done.returncode, done.stdout, done.stderr)


def test_a_framework_in_an_image_is_tested_as_an_ordinary_user(site: Site) -> None:
    op1 = site.cluster.lab.box("op1")
    op1.run(["sh", "-c", f"cat '/home/ada/{IMAGE}' >/opt/tools.sif"])
    works = Framework(
        "tools-1", 'read -r line </etc/os-release && [ "$line $UID" = "in-the-image 65534" ]', (), "/opt/tools.sif"
    )
    lacks = replace(works, check="exec torch")
    shell = cast("Shell", _BoxShell(op1))
    assert list(framework_failures(shell, [works], gpus=True)) == []
    (failure,) = framework_failures(shell, [lacks], gpus=False)
    assert "torch: not found' (exit status 127)" in failure.found


def from_registry(reference: str) -> str:
    """A job that runs in an image of the registry."""
    return f"""#!/bin/bash
#BURST container docker://{REGISTRY}/{reference}
#BURST stage_out . to results/%j
cat /etc/os-release > "$BURST_OUT/said"
"""


def said(site: Site, job: str, user: str = "ada") -> str:
    site.wait_job(job)
    return site.cluster.sh(f"cat results/{job}/said", user)


def data_status(site: Site, job: str) -> str:
    return " ".join(site.burstctl("stage", "status", job, check=False).stdout.split())


def conversions_running(site: Site) -> str:
    """Processes and files of conversions on the head."""
    return site.cluster.sh("pgrep -u burstd-image; find /var/tmp -name 'burstd-image-*'", check=False)


def test_an_image_of_a_registry_is_converted_once_for_all_who_may_read_it(site: Site, shared_folder: Path) -> None:
    registry = shared_folder / "home" / "registry"
    image_registry.order_fault(registry, "lab/tools", "slow")
    jobs = {user: submit(site, "-p burst", user, from_registry("lab/tools:many")) for user in ("ada", "bob")}

    def explained() -> str:
        return " ".join(site.burstctl_in_process("explain", job) for job in jobs.values())

    site.wait(lambda: "is being converted" in explained(), 60, "one is converted")
    site.wait(lambda: "until other images are converted" in explained(), 60, "one waits")
    assert conversions_running(site)

    # Killed in the middle burstd leaves nothing, and begins again.
    site.kill_burstd("KILL")
    site.wait(lambda: not conversions_running(site), 20, "the conversion has ended")
    image_registry.order_fault(registry, "lab/tools", "")
    (registry / "requests").unlink()
    site.start_burstd()
    assert [said(site, job, user) for user, job in jobs.items()] == ["in-the-image\n"] * 2
    rows = [site.api(f"/v1/stage/{job}")["job"] for job in jobs.values()]
    assert sorted(row["bytes_sent"] == 0 for row in rows) == [False, True]
    requests = (registry / "requests").read_text(encoding="utf-8").splitlines()
    assert sum(line.startswith("GET /v2/lab/tools/blobs/") for line in requests) == 2, "configuration and layer, once"
    assert not conversions_running(site)

    # On premises it is the same file.
    home = submit(site, "-p onprem -w op1", script=from_registry("lab/tools:1"))
    assert said(site, home) == "in-the-image\n"


@pytest.mark.parametrize(
    ("name", "fault", "limits", "says"),
    [
        ("lab/faulty:1", "redirect", {}, "[0-9]+ bytes"),
        ("lab/faulty:1", "wrong", {}, f"{errno.EAGAIN} .*[Dd]igest"),
        ("lab/faulty:1", "endless", {"max_bytes": 64 << 20}, f"{errno.EFBIG} .* the most is 64 MiB"),
        ("lab/faulty:1", "slow", {"seconds": 2.0}, f"{errno.ETIMEDOUT} .* is not converted after 2 s"),
        ("lab/faulty:1", "unavailable", {}, f"{errno.EAGAIN} .*503"),
        ("lab/faulty:1", "", {"max_bytes": 1 << 20}, f"{errno.EFBIG} .* of layers; the most is 1 MiB"),
        ("lab/faulty:1", "", {"apptainer": "no-apptainer"}, f"{errno.ENOSYS} docker:// needs Apptainer"),
        ("lab/faulty:1", "", {"folder": "/proc"}, f"{errno.ENOSYS} images are converted in /proc"),
        ("lab/faulty:1", "", {"account": "no-account"}, f"{errno.ENOSYS} docker:// needs an account no-account"),
        ("lab/faulty:2", "", {}, f"{errno.ENOENT} .*manifest unknown"),
        ("lab/negative:1", "", {}, f"{errno.EINVAL} .* a layer of a size that none has"),
        ("lab/foreign:1", "", {}, f"{errno.EINVAL} .* is for s390x, and the site's machines are amd64"),
        ("lab/foreign:many", "", {}, f"{errno.EINVAL} .* has no image for Linux on amd64, only for s390x"),
    ],
)
def test_a_conversion_ends_whatever_the_registry_does(
    site: Site, shared_folder: Path, name: str, fault: str, limits: dict[str, object], says: str
) -> None:
    registry = shared_folder / "home" / "registry"
    image_registry.order_fault(registry, "lab/faulty", fault)
    words = [f"{PREFIX}/bin/python", "-c", CONVERT, json.dumps([f"docker://{REGISTRY}/{name}", limits, None, None])]
    done = site.cluster.head.run(words, timeout=120)
    assert re.match(says, done.stdout), done.stdout + done.stderr
    assert not conversions_running(site)


def test_a_digest_stands_for_one_list_of_platforms(site: Site, shared_folder: Path) -> None:
    repository = shared_folder / "home" / "registry" / "lab" / "faulty"
    digest = json.loads((repository / "index.json").read_text(encoding="ascii"))["many"][0]
    index = repository / digest
    index.write_text(index.read_text(encoding="utf-8") + " ", encoding="utf-8")
    words = [f"{PREFIX}/bin/python", "-c", CONVERT]
    asked = json.dumps([f"docker://{REGISTRY}/lab/faulty@{digest}", {}, None, None])
    assert re.match(f"{errno.EINVAL} .* another digest than", site.cluster.head.run([*words, asked]).stdout)


def test_a_private_image_is_for_those_whom_its_registry_lets_read_it(site: Site) -> None:
    private = from_registry("lab/private:1")
    assert said(site, submit(site, "-p burst", "ada", private)) == "in-the-image\n"
    job = submit(site, "-p burst", "bob", private)
    reason = "denied; log in with 'apptainer registry login docker://127.0.0.1:5055'"
    site.wait(lambda: reason in data_status(site, job), 60, "bob's job is held")
    site.cluster.sh(f"scancel {job}", "bob")
    kept = f"grep -ral -e {CREDENTIALS} -e hidden-word {LOG} /var/lib/burstd /var/log/slurm"
    assert site.cluster.sh(kept, "root", check=False) == ""
    with pytest.raises(AssertionError, match=rf"registry ghcr.io is not allowed: .* {REGISTRY}"):
        submit(site, "-p burst", script=from_registry("x").replace(REGISTRY, "ghcr.io"))


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
    site.wait(lambda: reason in site.burstctl_in_process("stage", "status", job), 60, "its start is refused")
    assert site.job(job)["JobState"] == "PENDING"
    site.cluster.sh(f"scancel {job}", "ada")
    wait_all_gone(site)


@pytest.mark.thorough
def test_on_the_newest_slurm_where_nodes_show_the_homes(tmp_path: Path) -> None:
    conf = f"{MISSED_SOON}\nPrologSlurmctld={PREFIX}/bin/burstd-prolog"
    with site_with_image("forky", tmp_path, settings=HOMES, extra_conf=conf) as site:
        private = submit(site, "-p burst", script=from_registry("lab/private:many"))
        boxed, live = submit(site, "-p burst --gres=gpu:1"), submit(site, "-p burst", script=LIVE)
        assert told_to_end(site, boxed).startswith("in-the-image\nhello\n<5><b c>")
        site.wait_job(live)
        assert said(site, private) == "in-the-image\n"
        assert site.cluster.sh("cat live", "ada") == "in-the-image\nhello\n"
