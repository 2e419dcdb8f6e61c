"""The wheel, as somebody gets it who has nothing but Python: installed with what it needs into an empty environment."""

from __future__ import annotations

import subprocess
import venv
import zipfile
from pathlib import Path

import pytest

from tests.lab import programs

pytestmark = pytest.mark.slow


PROGRAMS = (
    "burstd", "burstctl", "burstd-user-worker", "burstd-hand", "burstd-stage", "burstd-power", "burstd-resume",
    "burstd-suspend", "burstd-resumefail",
)  # fmt: skip


@pytest.fixture(scope="module")
def wheel() -> Path:
    return programs.wheel()


def test_it_has_what_is_not_python_too(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    for wanted in (
        "burstd/share/config/burstd.toml",
        "burstd/share/config/cloud-init/node.yaml.in",
        "burstd/share/config/grafana/burstd-money.json",
        "burstd/share/config/ondemand/passenger_wsgi.py",
        "burstd/share/config/prometheus/burstd.rules.yml",
        "burstd/share/systemd/burstd.service",
        "burstd/db/migrations/env.py",
        "burstd/py.typed",
        "burstd/simulate/buy_or_rent/page.html.j2",
        "burstd/simulate/report/page.css",
        "burstd/simulate/report/page.html.j2",
        "burstd/simulate/report/page.js",
        "burstd/vendor/htmx/LICENSE",
        "burstd/vendor/htmx/htmx.min.js",
        "burstd/vendor/uplot/LICENSE",
        "burstd/vendor/uplot/uPlot.iife.min.js",
        "burstd/vendor/uplot/uPlot.min.css",
        "burstd/web/static/style.css",
        "burstd/web/templates/base.html",
        "providers/openshift/scripts/init.sh",
    ):
        assert wanted in names
    assert not [n for n in names if n.startswith(("tests/", "docs/")) or "__pycache__" in n]


@pytest.mark.boxes
def test_an_empty_environment_gets_working_programs(wheel: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    bin_dir = tmp_path / "venv" / "bin"
    # As docs/packages.md has it: the versions that burstd is tested with come with it.
    pip = [str(bin_dir / "pip"), "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-deps", str(wheel)], check=True, timeout=500)
    constraints = next(tmp_path.glob("venv/lib/python3*/site-packages/burstd/share/config/constraints.txt"))
    subprocess.run([*pip, "-c", str(constraints), str(wheel)], check=True, timeout=500)
    assert all((bin_dir / program).exists() for program in PROGRAMS)

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [str(bin_dir / words[0]), *words[1:]]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path)

    assert run("burstd", "--version").stdout.startswith("burstd 0.")
    assert "explain" in run("burstctl", "--help").stdout
    broken = tmp_path / "burstd.toml"
    broken.write_text('cluster = "x"\n[pools.gpu]\nnodes = "a[1-2]"\npartition = ["burst"]\n', encoding="utf-8")
    said = run("burstd", "--config", str(broken), "--check")
    assert said.returncode == 78
    assert "pools.gpu.partition" in said.stderr
    assert "partitions" in said.stderr
    unreachable = run("burstctl", "--socket", str(tmp_path / "none.sock"), "status")
    assert unreachable.returncode == 3
    assert "Traceback" not in unreachable.stderr
    # A cloud's or a database's own packages are not asked of a site that has no use for them.
    listed = run("pip", "list").stdout.lower()
    assert "burstd" in listed
    assert not {"psycopg", "pyslurm", "boto3", "google-api-python-client", "openstacksdk"} & set(listed.split())
