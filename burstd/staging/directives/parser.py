"""``#BURST`` lines of a job script: what a job asks of staging, and what is wrong with it.

Slurm's burst_buffer/lua decides which lines count, and the same are read here: those that begin with ``#BURST`` in
the first column, before the first line that does not begin with ``#`` (empty lines are skipped, a line of blanks is
not). A line that ends in a backslash goes on in the next one, which is a ``#BURST`` line too. As with ``#SBATCH``,
what comes after the first command is no directive, not even a wrong one: a script may write another script.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from burstd.domain.staging import Access, DirectiveFault, Directives, OutputCondition, StageIn, StageOut
from burstd.domain.units import SIZE_FORMAT, parse_size
from burstd.staging.directives.lexer import (
    BLANKS,
    SYMBOLS,
    DirectiveSyntaxError,
    Token,
    has_wildcards,
    literal_text,
    quote_pattern,
    quote_token,
    tokenize,
)

PREFIX = "#BURST"
MAX_LINES = 256
"""Of a script, those that go on in the next one counted once."""
MAX_LINE_CHARS = 16384
"""Of a line: two paths of the greatest length, quoted."""
MAX_FAULTS = 20
USAGE = {
    "stage_in": "stage_in SOURCE [as NAME] [read_only|copy]",
    "stage_out": "stage_out PATTERN to DESTINATION [on success|failure|always]",
    "dataset": "dataset NAME[@VERSION] [as NAME] [read_only|copy]",
    "scratch": "scratch SIZE",
    "help": "help",
}
_SCHEMES = ("s3", "swift")
_LOCATIONS = (
    "a path on premises (absolute, from the job's working directory, or from ~), s3://BUCKET/KEY or swift://..."
)
_STRAY = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_HOST = re.compile(r"[A-Za-z0-9_.@-]+:/")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_DATASET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}(?:@[A-Za-z0-9][A-Za-z0-9._-]{0,63})?")


def directive_help() -> str:
    """What can be written, for a person: the answer to ``#BURST help``."""
    return f"""\
Lines that begin with #BURST, above the first command of the script:

  #BURST {USAGE["stage_in"]}
      Brings SOURCE near the cloud nodes before the job starts; the job finds it as $BURST_IN/NAME.
      SOURCE: {_LOCATIONS};
      a file, a directory, or a pattern with *, ? and [...]. NAME: by default the last part of SOURCE.
      read_only (the default): shared with other jobs; copy: the job's own, which it may change.
  #BURST {USAGE["stage_out"]}
      Brings what the job leaves in $BURST_OUT and matches PATTERN to DESTINATION when it has ended.
      PATTERN: a path below $BURST_OUT, such as results/*.csv; '.' is all of it. DESTINATION: as SOURCE, no pattern.
  #BURST {USAGE["dataset"]}
      An input that the site has named; without a version the latest.
  #BURST {USAGE["scratch"]}
      Room on each node's own disk in $BURST_SCRATCH, which is lost when the job ends. SIZE: 100G, 1.5TiB.
  #BURST help
      Refuses the job and shows this.

Quote as in a shell: 'my data', "$HOME/my data", my\\ data, $'with\\nnewline'. {", ".join(f"%{s}" for s in SYMBOLS)}
stand for {", ".join(SYMBOLS.values())}; %% is a percent sign.

  #BURST stage_in ~/genomes/hg38.fa
  #BURST stage_in 'runs/2024 *' as runs copy
  #BURST stage_out results/*.csv to results/%j on success
  #BURST stage_out . to s3://lab/job-%j"""


def parse_directives(
    script: str, *, symbols_replaced: bool = False, submitted: bool = False
) -> tuple[Directives, tuple[DirectiveFault, ...]]:
    """What a script asks for, and its faults, MOST_FAULTS at most, in the order of its lines. Never raises.

    ``script`` as os.fsdecode gives it. ``replaced``: Slurm has put in ``%j`` and the like already (the script that
    hooks get after submission where there is a ``%``); else they are variables of the patterns (words.fill).
    ``submitted``: the job was let in, so MOST_LINES and MOST_LETTERS are not looked at again. Takes a time in
    proportion to the script.
    """
    reading = _ScriptParser(symbols_replaced)
    for count, (number, text, dangling) in enumerate(_lines(_STRAY.sub("\ufffd", script))):
        if not submitted and count == MAX_LINES:
            wrong = f"it is one too many: a script has {MAX_LINES} {PREFIX} lines at most"
            reading.faults.append(DirectiveFault(number, text, wrong, "name a directory, or a pattern, for many files"))
            break
        if len(reading.faults) == MAX_FAULTS:
            reading.faults.append(DirectiveFault(number, text, "it was not read", "mend the lines above first"))
            break
        try:
            reading.parse_line(number, text, dangling=dangling, max_chars=len(text) if submitted else MAX_LINE_CHARS)
        except DirectiveSyntaxError as fault:
            reading.faults.append(DirectiveFault(number, text, fault.problem, fault.expected))
    return Directives(tuple(reading.stage_in), tuple(reading.stage_out), reading.scratch), tuple(reading.faults)


def format_directives(directives: Directives) -> str:
    """Lines that ``parse`` reads as these directives, one for each."""
    lines: list[str] = []
    for wanted in directives.stage_in:
        what = (
            f"dataset {quote_token(wanted.dataset)}" if wanted.dataset else f"stage_in {quote_pattern(wanted.source)}"
        )
        lines.append(f"{PREFIX} {what} as {quote_token(wanted.name)} {wanted.access.value}")
    lines += [
        f"{PREFIX} stage_out {quote_pattern(left.pattern)} to {quote_pattern(left.destination)} on {left.when.value}"
        for left in directives.stage_out
    ]
    if directives.scratch_bytes:
        lines.append(f"{PREFIX} scratch {directives.scratch_bytes}B")
    return "".join(line + "\n" for line in lines)


def _lines(script: str) -> Iterator[tuple[int, str, bool]]:
    """Number and text of each directive, and whether it promises a line more that does not come."""
    first, goes_on = 0, False
    parts: list[str] = []
    """Of a line, none of them empty: joined once."""
    for number, line in enumerate(script.split("\n"), 1):
        if not line:
            continue
        if not line.startswith("#"):
            break
        if goes_on and line.startswith(PREFIX):
            rest = line.removeprefix(PREFIX)
            part = rest.lstrip() if parts[-1][-1].isspace() else rest
        else:
            if goes_on:
                yield first, "".join(parts), True
            goes_on = False
            if not line.startswith(PREFIX):
                continue
            first, parts, part = number, [], line
        if part:
            parts.append(part)
        goes_on = parts[-1].endswith("\\")
        if not goes_on:
            yield first, "".join(parts), False
        elif left := parts.pop()[:-1]:
            parts.append(left)
    if goes_on:
        yield first, "".join(parts), True


@dataclass(slots=True)
class _ScriptParser:
    """What has been read so far."""

    symbols_replaced: bool
    stage_in: list[StageIn] = field(default_factory=list)
    stage_out: list[StageOut] = field(default_factory=list)
    scratch: int = 0
    scratch_line: int = 0
    names: dict[str, int] = field(default_factory=dict)
    """Of inputs -> line."""
    outputs: set[tuple[str, str]] = field(default_factory=set)
    faults: list[DirectiveFault] = field(default_factory=list)

    def parse_line(self, number: int, text: str, *, dangling: bool, max_chars: int) -> None:
        """Reads one line of ``most`` letters at most; ``dangling``: it promises another. Raises Misquoted."""
        if len(text) > max_chars:
            raise DirectiveSyntaxError("it is too long", f"a line has {max_chars} characters at most")
        rest = text.removeprefix(PREFIX)
        if dangling:
            raise DirectiveSyntaxError(
                "it ends in a backslash", "a line goes on only where the next is a #BURST line too"
            )
        if rest and rest[0] not in BLANKS:
            raise DirectiveSyntaxError(
                "there is no blank after #BURST", "write '#BURST DIRECTIVE ...', or '# ' before a comment"
            )
        tokens = tokenize(rest, symbols=not self.symbols_replaced)
        if not tokens:
            raise DirectiveSyntaxError("it names no directive", _known_directives())
        readers: dict[str, Callable[[int, Sequence[Token]], None]] = {
            "stage_in": self._stage_in, "stage_out": self._stage_out, "dataset": self._dataset,
            "scratch": self._scratch, "help": self._help,
        }  # fmt: skip
        reader = readers.get(tokens[0].text)
        if reader is None:
            meant = _did_you_mean(tokens[0].text.replace("-", "_"), readers)
            raise DirectiveSyntaxError(
                f"there is no directive {quote_token(tokens[0].text)}{meant}", _known_directives()
            )
        reader(number, tokens[1:])

    def _stage_in(self, number: int, tokens: Sequence[Token]) -> None:
        if not tokens:
            raise DirectiveSyntaxError("it names no source", _usage("stage_in"))
        source = _location_pattern(tokens[0], "source")
        name, access = _parse_options(tokens[1:], "stage_in")
        self._input(StageIn(source, name or _default_name(source), access, number))

    def _dataset(self, number: int, tokens: Sequence[Token]) -> None:
        if not tokens:
            raise DirectiveSyntaxError("it names no dataset", _usage("dataset"))
        dataset = tokens[0].text
        if not _DATASET.fullmatch(dataset):
            allowed = f"{_usage('dataset')}; both are letters, digits, '.', '-' and '_'"
            raise DirectiveSyntaxError(f"{quote_token(dataset)} is no name of a dataset", allowed)
        name, access = _parse_options(tokens[1:], "dataset")
        self._input(StageIn("", name or dataset.partition("@")[0], access, number, dataset))

    def _input(self, wanted: StageIn) -> None:
        other = self.names.setdefault(wanted.name, wanted.line)
        if other != wanted.line:
            named = f"line {other} has an input {quote_token(wanted.name)} already"
            raise DirectiveSyntaxError(named, "give one of them another name with 'as NAME'")
        self.stage_in.append(wanted)

    def _stage_out(self, number: int, tokens: Sequence[Token]) -> None:
        if not tokens:
            raise DirectiveSyntaxError("it names no output", _usage("stage_out"))
        pattern = _output_pattern(tokens[0])
        if len(tokens) < 3 or tokens[1].text != "to":
            what = "it does not say where"
            if len(tokens) > 1:
                token_text = tokens[1].text
                what = (
                    "'to' names no destination"
                    if token_text == "to"
                    else f"after {quote_pattern(pattern)} comes {quote_token(token_text)}"
                )
            raise DirectiveSyntaxError(what, f"{_usage('stage_out')}; quote a path with blanks")
        destination = _location_pattern(tokens[2], "destination")
        when, rest = OutputCondition.ALWAYS, list(tokens[3:])
        if rest and rest[0].text == "on":
            token_text = rest[1].text if len(rest) > 1 else ""
            if token_text not in [w.value for w in OutputCondition]:
                what = f"'on' is followed by {quote_token(token_text)}" if token_text else "'on' is followed by nothing"
                raise DirectiveSyntaxError(
                    what + _did_you_mean(token_text, [w.value for w in OutputCondition]),
                    "on success, on failure or on always",
                )
            when, rest = OutputCondition(token_text), rest[2:]
        if rest:
            _unexpected(rest[0], ("on",), "stage_out")
        if (pattern, destination) in self.outputs:
            raise DirectiveSyntaxError("an earlier line says the same", "leave one of them out")
        self.outputs.add((pattern, destination))
        self.stage_out.append(StageOut(pattern, destination, when, number))

    def _scratch(self, number: int, tokens: Sequence[Token]) -> None:
        text = " ".join(token.text for token in tokens)
        size = parse_size(text)
        if not size:
            wrong = f"{quote_token(text)} is no size" if text else "it names no size"
            raise DirectiveSyntaxError(
                wrong, f"{_usage('scratch')}; a size is {SIZE_FORMAT}; at least 1 B, at most 8 EiB"
            )
        if self.scratch:
            raise DirectiveSyntaxError(f"line {self.scratch_line} asks for scratch already", "leave one of them out")
        self.scratch, self.scratch_line = size, number

    def _help(self, number: int, tokens: Sequence[Token]) -> None:
        del number, tokens
        raise DirectiveSyntaxError("the job is not submitted, here is the help", directive_help())


def _usage(directive: str) -> str:
    return f"write {PREFIX} {USAGE[directive]}"


def _known_directives() -> str:
    return f"there are {', '.join(USAGE)}; {PREFIX} help tells about them"


def _did_you_mean(word: str, known: Sequence[str] | dict[str, Callable[[int, Sequence[Token]], None]]) -> str:
    close = get_close_matches(word[:40].lower(), list(known), 1, 0.6)
    return f", did you mean {close[0]}?" if close else ""


def _unexpected(token: Token, known: Sequence[str], directive: str) -> None:
    wrong = f"{quote_token(token.text)} is not expected there{_did_you_mean(token.text, known)}"
    raise DirectiveSyntaxError(wrong, f"{_usage(directive)}; quote a path with blanks")


def _parse_options(tokens: Sequence[Token], directive: str) -> tuple[str, Access]:
    """``[as NAME] [read_only|copy]``, in either order; the name is empty where none is given."""
    name, access = "", None
    rest = list(tokens)
    while rest:
        token_text = rest[0].text
        if token_text == "as" and not name and len(rest) > 1:
            name = _input_name(rest[1])
            rest = rest[2:]
        elif token_text == "as":
            raise DirectiveSyntaxError("'as' names nothing" if not name else "it is named twice", _usage(directive))
        elif token_text in [a.value for a in Access]:
            if access is not None:
                raise DirectiveSyntaxError("it is said twice how it is used", _usage(directive))
            access = Access(token_text)
            rest = rest[1:]
        else:
            _unexpected(rest[0], ("as", *(a.value for a in Access)), directive)
    return name, access or Access.READ_ONLY


_NAME_RULE = "a name is that of one file in $BURST_IN: no '/', not '.' or '..', at most 255 bytes"


def _input_name(token: Token) -> str:
    name = literal_text(token.pattern)
    if name is None:
        raise DirectiveSyntaxError(
            f"{quote_pattern(token.pattern)} is no plain name", f"{_NAME_RULE}; quote *, ?, [ and $"
        )
    if fault := _name_fault(name):
        raise DirectiveSyntaxError(f"{quote_token(name)} {fault}", _NAME_RULE)
    return name


def _name_fault(name: str) -> str:
    if name in ("", ".", ".."):
        return "is no name"
    if "/" in name:
        return "is a path"
    return "is too long" if len(name.encode("utf-8", "surrogateescape")) > 255 else ""


def _default_name(source: str) -> str:
    """The name that an input has where none is given: the last part of its source."""
    if has_wildcards(source):
        raise DirectiveSyntaxError(f"{quote_pattern(source)} gives the input no name", "write 'as NAME' after it")
    last = literal_text(source.rpartition("/")[2])
    if last is None or _name_fault(last):
        raise DirectiveSyntaxError(f"{quote_pattern(source)} ends in no name", "write 'as NAME' after it")
    return last


def _location_pattern(token: Token, what: str) -> str:
    """A source or destination, as a pattern."""
    pattern = token.pattern
    if not pattern:
        raise DirectiveSyntaxError(f"the {what} is empty", f"a {what} is {_LOCATIONS}")
    if "BURST_OUT" in token.variables:
        raise DirectiveSyntaxError(
            f"$BURST_OUT cannot be in a {what}", f"it is known to the job only; a {what} is {_LOCATIONS}"
        )
    if has_wildcards(pattern) and what == "destination":
        raise DirectiveSyntaxError(
            "a destination has no wildcards", "quote *, ? and [ where they are meant as they are"
        )
    url = _URL.fullmatch(pattern)
    if url is None:
        if _HOST.match(pattern):
            raise DirectiveSyntaxError(
                f"{quote_pattern(token.pattern)} looks like a path on another host",
                f"a {what} is {_LOCATIONS}; or write ./...",
            )
        return pattern
    scheme, rest = url.groups()
    if scheme not in _SCHEMES:
        raise DirectiveSyntaxError(
            f"{quote_token(scheme)}:// is not known{_did_you_mean(scheme, _SCHEMES)}", f"a {what} is {_LOCATIONS}"
        )
    if has_wildcards(pattern):
        raise DirectiveSyntaxError(
            "wildcards are for paths on premises", "end a prefix of many objects in '/', and name it"
        )
    bucket, _, key = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise DirectiveSyntaxError(f"{quote_token(bucket)} is no name of a bucket", f"write {scheme}://BUCKET/KEY")
    if not key and what == "source":
        raise DirectiveSyntaxError("it names a whole bucket", f"write {scheme}://BUCKET/KEY, or .../PREFIX/ as NAME")
    return pattern


def _output_pattern(token: Token) -> str:
    """The pattern of an output: relative to $BURST_OUT."""
    pattern, allowed = token.pattern, "outputs are what the job leaves below $BURST_OUT; write results/*.csv or '.'"
    relative_part = pattern.removeprefix("${BURST_OUT}")
    if relative_part != pattern:
        pattern = relative_part.lstrip("/") if relative_part[:1] in ("", "/") else pattern
    elif pattern.startswith("/") or "HOME" in token.variables or _URL.fullmatch(pattern):
        raise DirectiveSyntaxError(f"{quote_pattern(token.pattern)} is not below $BURST_OUT", allowed)
    if "${BURST_OUT}" in pattern or "${HOME}" in pattern:
        raise DirectiveSyntaxError(f"{quote_pattern(token.pattern)} has a variable within", allowed)
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if any(literal_text(part) == ".." for part in parts):
        raise DirectiveSyntaxError(f"{quote_pattern(token.pattern)} leads out of $BURST_OUT by '..'", allowed)
    return "/".join(parts) or "."
