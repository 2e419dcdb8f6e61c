"""The demo's minute of projects: four of them share the sixteen GPUs on premises, and what each runs as they ask."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from fractions import Fraction

from rich.console import Console
from rich.table import Table

from burstd.cli.commands.project import share_bar
from burstd.domain.project import Project
from tests.lab.site import Site

QUOTAS = {"a": 4, "b": 2, "c": 2, "d": 8}
GPUS_OF_A_NODE = 8
PROJECTS = tuple(
    Project(name, f"team-{name}", Fraction(quota), partitions=("onprem",)) for name, quota in QUOTAS.items()
)
SETTINGS = "".join(
    f'[projects.{p.name}]\naccount = "{p.account}"\nquota = {p.quota}\npartitions = ["onprem"]\n' for p in PROJECTS
)
PATIENCE_S = 60.0
POLL_S = 0.2


def play(site: Site, console: Console) -> None:
    """The phases, each until every project runs what it is to have. Raises TimeoutError."""
    console.print(
        "\n[bold]Four projects on premises[/]: 16 GPUs; a has a quota of 4, b and c of 2, d of 8. A job takes one GPU.",
        soft_wrap=True,
    )
    _phase(site, console, "a, b and c ask for 16 each, d is idle", (8, 4, 4, 0), lambda: _ask(site, console, "abc", 16))
    _phase(site, console, "d asks for its own", (4, 2, 2, 8), lambda: _ask(site, console, "d", 8))
    _phase(site, console, "d leaves", (8, 4, 4, 0), lambda: _leave(site, console, "d"))
    site.kill_burstd()
    console.print("\n[bold red]burstd is killed.[/] Slurm keeps quotas by itself:")
    _phase(site, console, "d asks again", (4, 2, 2, 8), lambda: _ask(site, console, "d", 8))
    site.start_burstd()
    _phase(site, console, "burstd is back; b and d leave", (11, 0, 5, 0), lambda: _leave(site, console, "bd"))
    console.print("\n[bold]$ burstctl project list[/]")
    console.print(site.burstctl("project", "list").stdout, markup=False, highlight=False)
    _leave(site, console, "abcd")


def _ask(site: Site, console: Console, names: str, gpus: int) -> None:
    for name in names:
        words = f"-A team-{name} -p onprem --gres=gpu:1 --mem=1 --array=1-{gpus} -o /dev/null"
        job = site.submit(words, "sleep 600")
        console.print(f"  ada    $ sbatch {words} --wrap 'sleep 600'    -> job {job}", highlight=False, soft_wrap=True)


def _leave(site: Site, console: Console, names: str) -> None:
    for name in names:
        console.print(f"  ada    $ scancel -A team-{name}", highlight=False)
        site.cluster.sh(f"scancel -A team-{name}", "ada")


def _phase(site: Site, console: Console, what: str, wanted: tuple[int, ...], change: Callable[[], None]) -> None:
    console.print(f"\n[bold]{what}[/]")
    begun, last = time.monotonic(), _running(site)
    change()
    while (now := _running(site)) != wanted:
        if now != last:
            console.print(f"  {time.monotonic() - begun:4.1f} s  {_figures(now)}", highlight=False)
            last = now
        if time.monotonic() - begun > PATIENCE_S:
            raise TimeoutError(
                f"the projects run {_figures(now)}, not {_figures(wanted)}:\n{site.cluster.sh('squeue')}"
            )
        time.sleep(POLL_S)
    bars = Table(box=None, show_header=False, padding=(0, 2))
    for project, gpus in zip(PROJECTS, wanted, strict=True):
        bars.add_row(project.name, f"{gpus} of {project.quota}", share_bar(float(project.quota), gpus, gpus, 16))
    console.print(f"  {time.monotonic() - begun:4.1f} s  as divided:", highlight=False)
    console.print(bars)


def _running(site: Site) -> tuple[int, ...]:
    """GPUs that each project runs."""
    found = Counter(site.cluster.sh("squeue -h -r -t R -o %a").split())
    return tuple(found[project.account] for project in PROJECTS)


def _figures(gpus: tuple[int, ...]) -> str:
    return ", ".join(f"{project.name} {count}" for project, count in zip(PROJECTS, gpus, strict=True))
