"""What burstctl check says of staging: its files beside slurm.conf, its workers and its store."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from burstd.share import share_path
from tests.reach import let_others_in

from .conftest import NOBODY, Run, as_user
from .test_check import needs_root, slurm_that_says


def staged_slurm(folder: Path, store: Path) -> Path:
    """The same with staging into a shared folder, and its files beside slurm.conf."""
    config = [
        "SLURM_VERSION = 22.05.8",
        "SelectType = select/cons_tres",
        f"SLURM_CONF = {folder}/slurm.conf",
        "BurstBufferType = burst_buffer/lua",
    ]
    file = slurm_that_says(folder, "\n".join(config), "", "")
    for name in ("burst_buffer.lua", "burst_buffer.conf"):
        shutil.copy(share_path("config", "slurm", name), folder / name)
    staging = f'[staging]\nstore = "s"\n[staging.stores.s]\nkind = "shared"\npath = "{store}"\n'
    state = folder / "state"
    state.mkdir()
    more = f'[daemon]\nstate_dir = "{state}"\n{staging}'
    file.write_text(file.read_text(encoding="utf-8") + more, encoding="utf-8")
    return file


def staging_faults(run: Run, file: Path) -> dict[str, dict[str, Any]]:
    """What is wrong with staging, by its subject; the pools are not looked at here."""
    outcome = run("check", "--json", "--config", str(file))
    found = {f["subject"]: f for f in json.loads(outcome.out)["findings"]}
    return {
        s: f
        for s, f in found.items()
        if re.search(r"store|worker|burst_buffer|BurstBuffer|job_submit", s + f["wanted"])
    }


@needs_root
def test_staging_is_looked_at(run: Run, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    file = staged_slurm(tmp_path, store)
    assert staging_faults(run, file) == {}

    (tmp_path / "config").write_text(f"SLURM_VERSION = 22.05.8\nSLURM_CONF = {tmp_path}/slurm.conf\n")
    (tmp_path / "burst_buffer.lua").write_text("-- mine\n")
    (tmp_path / "burst_buffer.conf").write_text("Directive=BB\n")
    shutil.rmtree(store)
    found = staging_faults(run, file)
    shipped = share_path("config", "slurm")
    assert {subject: list(finding.values())[1:] for subject, finding in found.items()} == {
        "BurstBufferType": [
            "burst_buffer/lua",
            "not set",
            (
                "jobs with #BURST lines start without their data; burst_buffer.lua and burst_buffer.conf must lie "
                "beside slurm.conf before slurmctld is restarted"
            ),
            "set BurstBufferType=burst_buffer/lua",
            False,
        ],
        f"{tmp_path}/burst_buffer.lua": [
            f"the same as {shipped}/burst_buffer.lua",
            "a different file",
            "after an update of burstd the old script may send requests that burstd no longer understands",
            f"copy {shipped}/burst_buffer.lua to {tmp_path} and restart slurmctld, unless you changed it on purpose",
            True,
        ],
        f"{tmp_path}/burst_buffer.conf": [
            "Directive=BURST",
            "another directive, or none",
            "slurmctld does not know #BURST lines",
            "add the line and run scontrol reconfigure",
            False,
        ],
        "store s": [
            "an answer",
            f"the folder {store} is not there: make it, or mount its file system",
            "no input reaches the cloud and no output comes home",
            "check [staging.stores.s]",
            False,
        ],
    }

    shutil.copy(share_path("config", "slurm", "job_submit.lua"), tmp_path / "job_submit.lua")
    (tmp_path / "burstd_job_submit.lua").write_text("-- runs burstd-stage as an older one does\n")
    (tmp_path / "burst_buffer.conf").unlink()
    os.chown(tmp_path / "state", 65534, 65534)
    let_others_in(tmp_path)
    images = 'container_program = "no-apptainer"\nimages = { registries = ["docker.io"] }\n'
    file.write_text(file.read_text(encoding="utf-8").replace("[staging]\n", f"[staging]\n{images}"), encoding="utf-8")
    found = staging_faults(run, file)
    assert found["/run/burstd/image-worker.sock"]["remedy"] == "systemctl enable --now burstd-image-worker.socket"
    assert found[f"{tmp_path}/burst_buffer.conf"]["found"] == "no file"
    assert found[f"{tmp_path}/burstd_job_submit.lua"]["breaks"] == "sbatch refuses scripts with #BURST container"
    assert f"{tmp_path}/job_submit.lua" not in found
    lacks = {f["subject"]: f for f in json.loads(run("check", "--json", "--config", str(file)).out)["findings"]}
    assert lacks["no-apptainer"]["breaks"] == "jobs with '#BURST container docker://...' are held"
    assert found["/run/burstd/user-worker.sock"]["remedy"] == "systemctl enable --now burstd-user-worker.socket"


@needs_root
def test_the_store_is_not_looked_at_by_just_anybody(run: Run, tmp_path: Path) -> None:
    file = staged_slurm(tmp_path, tmp_path / "store")
    let_others_in(tmp_path)
    staging_faults(run, file)
    with as_user(NOBODY):
        assert set(staging_faults(run, file)) == {"files, store and workers of burstd"}
