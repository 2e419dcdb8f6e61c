"""``--watch``: a listing that is asked for and drawn again and again."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import typer

from burstd.cli.plain_text import print_json_line, safe_text
from burstd.cli.session import ApiClient, ExitCode, with_client

if TYPE_CHECKING:
    from burstd.api.answers.base import AnswerView
    from burstd.cli.output import ConsoleOutput

A = TypeVar("A", bound="AnswerView")
WATCH_INTERVAL_S = 2.0
WatchOption = Annotated[
    bool,
    typer.Option("--watch", help=f"Again every {WATCH_INTERVAL_S:.0f} s, until Ctrl-C; with --json one answer a line."),
]


def listing(function: Callable[..., None]) -> Callable[..., None]:
    """A command as ``with_client`` makes it that takes ``--watch`` as well.

    With it the function runs again and again, and what it gives to ``show`` takes the place of what was there before.
    """

    def run(burstd: ApiClient, /, *, watch: bool, **words: object) -> None:
        if watch:
            _watch(_WatchingClient(burstd), lambda client: function(client, **words))
        else:
            function(burstd, **words)

    given = inspect.signature(function, eval_str=True)
    watch = inspect.Parameter("watch", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=WatchOption)
    run.__signature__ = given.replace(parameters=[*given.parameters.values(), watch])  # type: ignore[attr-defined]
    run.__name__, run.__doc__ = function.__name__, function.__doc__
    return with_client(run)


class _NoAnswerNow(Exception):
    """burstd cannot be reached, or cannot answer, after it has done so before."""


class _WatchingClient(ApiClient):
    """Keeps what is to be shown, and lives longer than the daemon."""

    watching = True

    def __init__(self, like: ApiClient) -> None:
        super().__init__(like.path, as_json=like.json)
        self.page: Callable[[ConsoleOutput], None] | None = None
        """The last one; None: there was none so far."""

    def show(self, model: type[A], answer: object, draw: Callable[[ConsoleOutput, A], None]) -> None:
        """Keeps an answer to be drawn."""
        if self.json:
            self.page = lambda _: print_json_line(answer)
            return
        parsed, now = self.parse(model, answer), datetime.now().astimezone()

        def page(out: ConsoleOutput) -> None:
            out.line((f"{now:%a %d %b %Y %H:%M:%S}", "dim"))
            draw(out, parsed)

        self.page = page

    def fail(self, code: ExitCode, text: str) -> NoReturn:
        """Ends the program, but for a daemon that answered before: that may be starting again."""
        if code is ExitCode.UNREACHABLE and self.page is not None:
            raise _NoAnswerNow(text.partition("\n")[0])
        super().fail(code, text)


def _watch(client: _WatchingClient, ask: Callable[[_WatchingClient], None]) -> None:
    from burstd.cli.output import ConsoleOutput  # with rich, which takes long to load

    try:
        ConsoleOutput().live_pages(_pages(client, ask), in_place=not client.json)
    except KeyboardInterrupt:
        raise typer.Exit(ExitCode.OK) from None


def _pages(
    client: _WatchingClient, ask: Callable[[_WatchingClient], None]
) -> Iterator[Callable[[ConsoleOutput], None]]:
    """What to draw, again and again, until the function ends the program."""
    told = end = None
    while end is None:
        before = client.page
        try:
            ask(client)
        except _NoAnswerNow as problem:
            if not told:
                typer.echo(f"burstctl: {safe_text(str(problem))} Trying again.", err=True)
            told = problem
        except typer.Exit as exit_:
            end = exit_ if exit_.exit_code != ExitCode.UNREACHABLE or client.page is before else None
        if client.page is not None and client.page is not before:
            told = None
            yield client.page
        if end is None:
            time.sleep(WATCH_INTERVAL_S)
    raise end
