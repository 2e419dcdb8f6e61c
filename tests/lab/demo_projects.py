"""The demo's minute of projects: four of them share the sixteen GPUs on premises, and what each runs as they ask."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from fractions import Fraction

from rich.console import Console
from rich.text import Text

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
    dead = "[red]burstd is killed[/], Slurm keeps the quotas by itself; d asks again"
    _phase(site, console, dead, (4, 2, 2, 8), lambda: _ask(site, console, "d", 8))
    site.start_burstd()
    _phase(site, console, "burstd is back; b and d leave", (11, 0, 5, 0), lambda: _leave(site, console, "bd"))
    site.wait(lambda: _seen_by_burstd(site) == (11, 0, 5, 0), PATIENCE_S, "what runs in burstctl project list")
    console.print("\n[bold]$ burstctl project list[/]")
    console.print(site.burstctl("project", "list").stdout, markup=False, highlight=False)
    _leave(site, console, "abcd")


def _ask(site: Site, console: Console, names: str, gpus: int) -> None:
    words = f"-p onprem --gres=gpu:1 --mem=1 --array=1-{gpus} -o /dev/null --wrap 'sleep 600'"
    # In one command: burstd sees them together, and divides once.
    command = f"sbatch -A team-{names} {words}"
    if len(names) > 1:
        command = f"for name in {' '.join(names)}; do sbatch -A team-$name {words}; done"
    said = site.cluster.sh(command.replace("sbatch", "sbatch --parsable"), "ada")
    jobs = ", ".join(said.split())
    console.print(f"  ada    $ {command}    -> job {jobs}", markup=False, highlight=False, soft_wrap=True)


def _leave(site: Site, console: Console, names: str) -> None:
    # scancel takes one account.
    command = "; ".join(f"scancel -A team-{name}" for name in names)
    console.print(f"  ada    $ {command}", highlight=False, soft_wrap=True)
    site.cluster.sh(command, "ada")


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
    console.print(f"  {time.monotonic() - begun:4.1f} s  as divided:", highlight=False)
    for project, gpus in zip(PROJECTS, wanted, strict=True):
        bar = share_bar(float(project.quota), gpus, gpus, 16)
        console.print(Text(f"          {project.name}: {gpus:2} run, quota {project.quota}  ") + bar)


def _running(site: Site) -> tuple[int, ...]:
    """GPUs that each project runs."""
    found = Counter(site.cluster.sh("squeue -h -r -t R -o %a").split())
    return tuple(found[project.account] for project in PROJECTS)


def _seen_by_burstd(site: Site) -> tuple[float, ...]:
    """The same, as burstd read it last."""
    shares = {project["name"]: project["share"] or {} for project in site.api("/v1/projects")["projects"]}
    return tuple(shares[project.name].get("running", 0.0) for project in PROJECTS)


def _figures(gpus: tuple[int, ...]) -> str:
    return ", ".join(f"{project.name} {count}" for project, count in zip(PROJECTS, gpus, strict=True))
