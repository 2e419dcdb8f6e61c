"""burstctl volume"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from burstd.api.answers.text import elapsed_text, local_time_text, money_text
from burstd.cli.commands.event import print_history
from burstd.cli.output import ConsoleOutput, styled_state
from burstd.cli.session import ApiClient, ExitCode, confirm, with_client
from burstd.cli.watch import listing
from burstd.domain.units import size_text

if TYPE_CHECKING:
    from burstd.api.answers.volumes import VolumeDetailView, VolumeListView

app = typer.Typer(help="Disks in clouds that stay when the jobs that use them end.", no_args_is_help=True)
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The volume's name.")]
UserOption = Annotated[str, typer.Option(help="Whose it is; default: yours.")]


@app.command("list")
@listing
def list_volumes(burstd: ApiClient, user: Annotated[str, typer.Option(help="Only this user's.")] = "") -> None:
    """Volumes: where they are, which job has each, what they cost. Administrators see everybody's."""
    from burstd.api.answers.volumes import VolumeListView

    burstd.show(VolumeListView, burstd.get_json("/volumes", {"user": user} if user else {}), print_volumes)


@app.command("show")
@with_client
def show_volume(burstd: ApiClient, name: NameArgument, user: UserOption = "") -> None:
    """One volume, with its history."""
    from burstd.api.answers.volumes import VolumeDetailView

    burstd.show(VolumeDetailView, burstd.get_json(f"/volumes/{name}", {"user": user} if user else {}), _print_volume)


@app.command("remove")
@with_client
def remove_volume(
    burstd: ApiClient,
    name: NameArgument,
    user: UserOption = "",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove a volume and all that is on it. It cannot be taken back. Refused while a job has it or awaits it."""
    from burstd.api.answers.volumes import VolumeDetailView

    params: dict[str, str | int | float] = {"user": user} if user else {}
    if not yes:
        volume = burstd.parse(VolumeDetailView, burstd.get_json(f"/volumes/{name}", params)).volume
        if burstd.json:
            burstd.fail(ExitCode.USAGE, "With --json nobody is asked: say --yes.")
        size = size_text(volume.size_bytes)
        confirm(burstd, f"Volume {name} of {volume.user} ({size}) and all that is on it will be lost. Remove it?")
    burstd.run_command("POST", f"/volumes/{name}/remove" + (f"?user={user}" if user else ""))


def print_volumes(out: ConsoleOutput, answer: VolumeListView) -> None:
    """The table, or why there is none."""
    if not answer.on:
        out.note("No provider has volumes: burstd was started without prices in [volumes].", "yellow", 0)
    if not answer.volumes:
        if answer.on:
            out.line("There is no volume.")
    else:
        out.table(
            ("NAME", "USER", "SIZE>", "STATE", "SINCE>", "JOB", "WHERE", "COST>", "WHY*"),
            [
                (
                    v.name, v.user, size_text(v.size_bytes), styled_state(v.state), elapsed_text(v.since, answer.now),
                    v.job_id, f"{v.provider} {v.zone}".strip(), money_text(v.cost), v.error or v.step_error or v.reason,
                )
                for v in answer.volumes
            ],
        )  # fmt: skip
    if answer.unknown:
        out.blank()
        out.table(
            ("UNKNOWN DISK", "PROVIDER", "ZONE", "SIZE>", "NAME", "USER", "ATTACHED TO"),
            [
                (d.id, d.provider, d.zone, size_text(d.size_bytes), d.name, d.user, d.attached_to)
                for d in answer.unknown
            ],
        )
        out.note("These bear this cluster's tag and are not on record. burstd never removes them.", "yellow", 0)


def _print_volume(out: ConsoleOutput, answer: VolumeDetailView) -> None:
    volume, now = answer.volume, answer.now
    since = elapsed_text(volume.since, now)
    out.pairs([
        ("volume", f"{volume.name} of {volume.user}" + (f" ({volume.account})" if volume.account else "")),
        ("size", size_text(volume.size_bytes)),
        ("state", Text.assemble(styled_state(volume.state), f" for {since}: {volume.reason}")),
        ("error", Text(volume.error or volume.step_error, "bold red")),
        ("job", volume.job_id),
        ("where", f"{volume.disk_id} in {volume.provider} {volume.zone}" if volume.provider else "nowhere so far"),
        ("cost", f"{money_text(volume.cost)}, {money_text(volume.price)} an hour"),
        ("paid since", local_time_text(volume.billed_from, now) if volume.billed_from else ""),
    ])  # fmt: skip
    print_history(out, answer.history, now)
