"""A site for the tests that leave one as it was, and the figures that are shown at the end of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from burstd.domain.cloud.offer import Pool
from burstd.domain.slurm.shape import Shape
from tests.e2e.sites import QUICK, TYPES_WITH_SPOT, site_up, wait_all_gone
from tests.lab import prometheus
from tests.lab.site import CPU, GPU, Site

SOLO = Pool("solo", ("solo1",), ("burst",), Shape(2, 1000, (), frozenset({"solo"})))
# A slot that no offer is large enough for: what waits for it waits for ever.
CLOSED = Pool("closed", ("closed1",), ("burst",), Shape(64, 100_000, (), frozenset({"closed"})))
# Jobs of the other tests have no figures of GPUs: nobody warns or ends them.
IDLE_GPUS = '[idle_gpus.burst]\nwarn_after_s = 4\nact = "cancel"\nact_after_s = 7\nstart_s = 0\n'
NEWS = '[notify]\nalarms = false\nbudgets = false\nprogram = "/usr/local/bin/burstd-hook"\njobs = ["idle_gpus"]\n'
SETTINGS = (
    QUICK
    + "[policies.limits]\nusers.bob.nodes = 0\n[sampler]\nevery_s = 1\nloading_mib_s = 1000\n"
    + IDLE_GPUS
    + NEWS
    + prometheus.SETTINGS
)

_FIGURES = pytest.StashKey[list[str]]()


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Takes a line for the end of the run."""
    return request.config.stash.setdefault(_FIGURES, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    figures = config.stash.get(_FIGURES, [])
    if figures:
        terminalreporter.section("measured end to end")
        for line in figures:
            terminalreporter.write_line(line)


@pytest.fixture(scope="package")
def whole_site() -> Iterator[Site]:
    with site_up(pools=[GPU, CPU, SOLO, CLOSED], types=TYPES_WITH_SPOT, settings=SETTINGS, comments=True) as up:
        yield up


@pytest.fixture
def site(whole_site: Site) -> Site:
    """The site without jobs, machines, pins and a hold, whatever a test before has left."""
    whole_site.cluster.sh("scancel -u ada; scancel -u bob")
    whole_site.wait(whole_site.has_looked, 60, "burstd's first loop")
    status = whole_site.burstctl_json("status")
    if status["daemon"]["paused"]:
        whole_site.burstctl("unhold")
    for pool in status["pools"]:
        if pool["pins"]:
            whole_site.burstctl("scale", pool["name"], "--clear")
    if any(node["held"] for node in whole_site.api("/v1/nodes")["nodes"]):
        whole_site.burstctl("node", "release", "solo1")
    wait_all_gone(whole_site)
    return whole_site
