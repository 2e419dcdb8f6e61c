"""Parses the ``#BURST`` lines of a job script and reports their faults.

Slurm's burst_buffer/lua decides which lines count, and this module reads the same: those that begin with ``#BURST`` in
the first column, before the first line that does not begin with ``#`` (empty lines are skipped, a line of blanks is
not). A line that ends in a backslash goes on in the next one, which is a ``#BURST`` line too. As with ``#SBATCH``,
what comes after the first command is no directive, not even a wrong one: a script may write another script.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from burstd.domain.staging import (
    WORKDIR_INPUT,
    Access,
    CheckpointLine,
    DirectiveFault,
    Directives,
    OutputCondition,
    StageIn,
    StageOut,
    VolumeLine,
)
from burstd.domain.units import SIZE_FORMAT, parse_size, parse_span, span_text
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
from burstd.transfer.images.reference import SCHEME, parse_reference

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
    "scratch": "scratch SIZE, or scratch shared [SIZE]",
    "checkpoint": "checkpoint PATH [every=TIME] [keep=NUMBER] [signal=[B:]NAME | command=COMMAND] [within=TIME]",
    "volume": "volume NAME [SIZE]",
    "workdir": "workdir [off]",
    "container": "container IMAGE.sif|docker://IMAGE",
    "help": "help",
}
_SCHEMES = ("s3", "swift")
_LOCATIONS = (
    "a path on premises (absolute, from the job's working directory, or from ~), s3://BUCKET/KEY or swift://..."
)
_STRAY = re.compile("[\ud800-\udc7f\udd00-\udfff]")
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
REGISTRY_IMAGE = "container.sif"
"""What an image of a registry is called in $BURST_IN."""
_REGISTRY = re.compile(r"(docker|oras|library|shub):/")
_HOST = re.compile(r"[A-Za-z0-9_.@-]+:/")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,254}")
_VOLUME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_DATASET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}(?:@[A-Za-z0-9][A-Za-z0-9._-]{0,63})?")


def directive_help() -> str:
    """The text that ``#BURST help`` shows."""
    return f"""\
Lines that begin with #BURST, above the first command of the script:

  #BURST {USAGE["stage_in"]}
      Copies SOURCE near the cloud nodes before the job starts; the job finds it as $BURST_IN/NAME.
      SOURCE: {_LOCATIONS};
      a file, a directory, or a pattern with *, ? and [...]. NAME: by default the last part of SOURCE.
      read_only (the default): shared with other jobs; copy: the job's own, which it may change.
  #BURST {USAGE["stage_out"]}
      Copies the files in $BURST_OUT that match PATTERN to DESTINATION when the job has ended.
      PATTERN: a path in $BURST_OUT, such as results/*.csv; '.' is all of it. DESTINATION: as SOURCE, no pattern.
  #BURST {USAGE["dataset"]}
      An input that the site has named; the latest version by default.
  #BURST scratch SIZE
      Space on each node's own disk in $BURST_SCRATCH, deleted when the job ends. SIZE: 100G, 1.5TiB.
  #BURST scratch shared [SIZE]
      One directory for all nodes of the job, $BURST_SHARED, on the first one's disk; deleted when the job ends.
  #BURST {USAGE["checkpoint"]}
      Copies PATH, or the newest file or directory that matches it, to the store while the job runs, and back when the
      job is requeued; $BURST_CHECKPOINT is then its path. PATH: a path in $BURST_OUT. TIME: 90s, 15m, 2h.
      signal: what tells the job to write one before its machine goes; B: only the batch script gets it.
      command: what is run in the job on its first node then, such as './save.sh'.
  #BURST {USAGE["volume"]}
      A disk of yours in the cloud that stays when the job ends: $BURST_VOLUMES/NAME. The first job that names it
      gives its SIZE. One job at a time has it; the next one waits.
  #BURST {USAGE["workdir"]}
      Copies the working directory to the same path on each node before the job starts, and what is new or changed there
      back when it has ended. What .burstignore in it names stays (the syntax of .gitignore). off: never.
  #BURST {USAGE["container"]}
      Runs the script in an image: an Apptainer file (as SOURCE, no pattern), or docker://[REGISTRY/]NAME[:TAG|@DIGEST],
      which burstd converts once. $BURST_CONTAINER is the path of the file.
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
    """What a script asks for, and its faults, MAX_FAULTS at most, in the order of its lines. Never raises.

    ``script`` as os.fsdecode gives it. ``symbols_replaced``: Slurm has put in ``%j`` and the like already (the script
    that hooks get after submission where there is a ``%``); else they are variables of the patterns
    (lexer.substitute_variables). ``submitted``: the job was accepted, so MAX_LINES and MAX_LINE_CHARS are not checked
    again. Takes time in proportion to the script.
    """
    reading = _ScriptParser(symbols_replaced)
    for count, (number, text, dangling) in enumerate(_lines(_STRAY.sub("\ufffd", script))):
        if not submitted and count == MAX_LINES:
            wrong = f"too many lines: at most {MAX_LINES} {PREFIX} lines in a script"
            reading.faults.append(DirectiveFault(number, text, wrong, "Use a directory or a pattern for many files"))
            break
        if len(reading.faults) == MAX_FAULTS:
            reading.faults.append(
                DirectiveFault(number, text, "not read: too many faults before it", "Correct the lines above first")
            )
            break
        try:
            reading.parse_line(number, text, dangling=dangling, max_chars=len(text) if submitted else MAX_LINE_CHARS)
        except DirectiveSyntaxError as fault:
            reading.faults.append(DirectiveFault(number, text, fault.problem, fault.expected))
    found = Directives(
        tuple(reading.stage_in),
        tuple(reading.stage_out),
        reading.scratch,
        reading.checkpoint,
        reading.shared_scratch,
        reading.volume,
        reading.workdir,
        reading.container,
    )
    return found, tuple(reading.faults)


def format_directives(directives: Directives) -> str:
    """Lines that ``parse_directives`` reads as these directives, one for each."""
    lines: list[str] = []
    for wanted in directives.stage_in:
        if directives.container == wanted.name:
            lines.append(f"{PREFIX} container {quote_pattern(wanted.source)}")
            continue
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
    if (shared := directives.shared_scratch_bytes) is not None:
        lines.append(f"{PREFIX} scratch shared{f' {shared}B' if shared else ''}")
    if (wanted_checkpoint := directives.checkpoint) is not None:
        each = f"every={wanted_checkpoint.every_s:.3f}s keep={wanted_checkpoint.keep}"
        within = f" within={wanted_checkpoint.within_s:.3f}s"
        told = f" signal={wanted_checkpoint.signal}{within}" if wanted_checkpoint.signal else ""
        if wanted_checkpoint.command:
            told = f" {quote_token(f'command={wanted_checkpoint.command}')}{within}"
        lines.append(f"{PREFIX} checkpoint {quote_pattern(wanted_checkpoint.pattern)} {each}{told}")
    if (volume := directives.volume) is not None:
        size = f" {volume.size_bytes}B" if volume.size_bytes else ""
        lines.append(f"{PREFIX} volume {volume.name}{size}")
    if directives.workdir is not None:
        lines.append(f"{PREFIX} workdir{'' if directives.workdir else ' off'}")
    return "".join(line + "\n" for line in lines)


def _lines(script: str) -> Iterator[tuple[int, str, bool]]:
    """Number and text of each directive, and whether it ends in a backslash without a next line."""
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
    shared_scratch: int | None = None
    shared_scratch_line: int = 0
    checkpoint: CheckpointLine | None = None
    volume: VolumeLine | None = None
    container: str = ""
    container_line: int = 0
    workdir: bool | None = None
    names: dict[str, int] = field(default_factory=dict)
    """Of inputs -> line."""
    outputs: set[tuple[str, str]] = field(default_factory=set)
    faults: list[DirectiveFault] = field(default_factory=list)

    def parse_line(self, number: int, text: str, *, dangling: bool, max_chars: int) -> None:
        """Reads one line. ``dangling``: it ends in a backslash, and no #BURST line follows.

        Raises DirectiveSyntaxError.
        """
        if len(text) > max_chars:
            raise DirectiveSyntaxError("the line is too long", f"The limit is {max_chars} characters")
        rest = text.removeprefix(PREFIX)
        if dangling:
            raise DirectiveSyntaxError(
                "the line ends in a backslash", "Continue it on the next line, which must begin with #BURST too"
            )
        if rest and rest[0] not in BLANKS:
            raise DirectiveSyntaxError(
                "missing blank after #BURST", "Write '#BURST DIRECTIVE ...', or '# ' before a comment"
            )
        tokens = tokenize(rest, symbols=not self.symbols_replaced)
        if not tokens:
            raise DirectiveSyntaxError("missing directive", _known_directives())
        readers: dict[str, Callable[[int, Sequence[Token]], None]] = {
            "stage_in": self._stage_in, "stage_out": self._stage_out, "dataset": self._dataset,
            "scratch": self._scratch, "checkpoint": self._checkpoint, "volume": self._volume,
            "workdir": self._workdir, "container": self._container, "help": self._help,
        }  # fmt: skip
        reader = readers.get(tokens[0].text)
        if reader is None:
            meant = _did_you_mean(tokens[0].text.replace("-", "_"), readers)
            raise DirectiveSyntaxError(f"unknown directive {quote_token(tokens[0].text)}{meant}", _known_directives())
        reader(number, tokens[1:])

    def _stage_in(self, number: int, tokens: Sequence[Token]) -> None:
        if not tokens:
            raise DirectiveSyntaxError("missing source", _usage("stage_in"))
        source = _location_pattern(tokens[0], "source")
        name, access = _parse_options(tokens[1:], "stage_in")
        self._input(StageIn(source, name or _default_name(source), access, number))

    def _dataset(self, number: int, tokens: Sequence[Token]) -> None:
        if not tokens:
            raise DirectiveSyntaxError("missing dataset", _usage("dataset"))
        dataset = tokens[0].text
        if not _DATASET.fullmatch(dataset):
            allowed = f"{_usage('dataset')}. NAME and VERSION consist of letters, digits, '.', '-' and '_'"
            raise DirectiveSyntaxError(f"{quote_token(dataset)} is not a valid dataset name", allowed)
        name, access = _parse_options(tokens[1:], "dataset")
        self._input(StageIn("", name or dataset.partition("@")[0], access, number, dataset))

    def _input(self, wanted: StageIn) -> None:
        other = self.names.setdefault(wanted.name, wanted.line)
        if other != wanted.line:
            named = f"line {other} already has an input {quote_token(wanted.name)}"
            raise DirectiveSyntaxError(named, "Give one of them another name with 'as NAME'")
        self.stage_in.append(wanted)

    def _stage_out(self, number: int, tokens: Sequence[Token]) -> None:
        if not tokens:
            raise DirectiveSyntaxError("missing output pattern", _usage("stage_out"))
        pattern = _output_pattern(tokens[0])
        if len(tokens) < 3 or tokens[1].text != "to":
            what = f"expected 'to DESTINATION' after {quote_pattern(pattern)}"
            if len(tokens) > 1:
                is_to = tokens[1].text == "to"
                what = "missing destination after 'to'" if is_to else f"{what}, found {tokens[1].text!r}"
            raise DirectiveSyntaxError(what, f"{_usage('stage_out')}. Quote paths with blanks")
        destination = _location_pattern(tokens[2], "destination")
        when, rest = OutputCondition.ALWAYS, list(tokens[3:])
        if rest and rest[0].text == "on":
            token_text = rest[1].text if len(rest) > 1 else ""
            if token_text not in [w.value for w in OutputCondition]:
                what = f"unknown condition {quote_token(token_text)}" if token_text else "missing condition after 'on'"
                raise DirectiveSyntaxError(
                    what + _did_you_mean(token_text, [w.value for w in OutputCondition]),
                    "Use on success, on failure or on always",
                )
            when, rest = OutputCondition(token_text), rest[2:]
        if rest:
            _unexpected(rest[0], ("on",), "stage_out")
        if (pattern, destination) in self.outputs:
            raise DirectiveSyntaxError("this repeats an earlier line", "Remove one of them")
        self.outputs.add((pattern, destination))
        self.stage_out.append(StageOut(pattern, destination, when, number))

    def _scratch(self, number: int, tokens: Sequence[Token]) -> None:
        shared = bool(tokens) and tokens[0].text == "shared"
        text = " ".join(token.text for token in tokens[shared:])
        size = parse_size(text)
        if not size and (text or not shared):
            wrong = f"{quote_token(text)} is not a size" if text else "missing size"
            raise DirectiveSyntaxError(wrong, f"{_usage('scratch')}. SIZE is {SIZE_FORMAT}, from 1 B to 8 EiB")
        if shared:
            if self.shared_scratch is not None:
                said = f"line {self.shared_scratch_line} already requests shared scratch"
                raise DirectiveSyntaxError(said, "Remove one of them")
            self.shared_scratch, self.shared_scratch_line = size or 0, number
            return
        if self.scratch:
            raise DirectiveSyntaxError(f"line {self.scratch_line} already requests scratch", "Remove one of them")
        self.scratch, self.scratch_line = size or 0, number

    def _checkpoint(self, number: int, tokens: Sequence[Token]) -> None:
        if not tokens:
            raise DirectiveSyntaxError("missing path", _usage("checkpoint"))
        pattern = _output_pattern(tokens[0])
        if pattern == ".":
            wrong = "$BURST_OUT itself cannot be the checkpoint"
            raise DirectiveSyntaxError(wrong, "Name a file or a directory in it, such as 'checkpoints/*'")
        options: dict[str, str] = {}
        for token in tokens[1:]:
            name, equals, value = token.text.partition("=")
            if name not in _CHECKPOINT_OPTIONS or not equals:
                _unexpected(token, [f"{option}=" for option in _CHECKPOINT_OPTIONS], "checkpoint")
            if name in options:
                raise DirectiveSyntaxError(f"give {name}= only once", _usage("checkpoint"))
            options[name] = value
        keep = options.get("keep", "2")
        if not (keep.isascii() and keep.isdigit() and 1 <= int(keep[:9]) <= MAX_CHECKPOINTS):
            raise DirectiveSyntaxError(
                f"keep={quote_token(keep)} is not a number of checkpoints", f"Use 1 to {MAX_CHECKPOINTS}"
            )
        every_s = _span("every", options.get("every", "15m"), MIN_CHECKPOINT_INTERVAL_S, MAX_CHECKPOINT_INTERVAL_S)
        within_s = _span("within", options.get("within", "60s"), 1.0, MAX_CHECKPOINT_WRITING_S)
        target, colon, name = options.get("signal", "").rpartition(":")
        name = name.removeprefix("SIG")
        if "signal" in options and (name not in _SIGNALS or (colon and target != "B")):
            wrong = f"signal={quote_token(options['signal'])} is not a signal"
            raise DirectiveSyntaxError(wrong, f"Use one of {', '.join(_SIGNALS)}, or B: and one of them")
        command = _job_command(tokens, options)
        if "within" in options and not command and "signal" not in options:
            raise DirectiveSyntaxError(
                "within= needs signal= or command=", "Name the signal or the command that makes the job write one"
            )
        if self.checkpoint is not None:
            said = f"line {self.checkpoint.line} already names the checkpoint"
            raise DirectiveSyntaxError(said, "Remove one of them. A pattern such as 'checkpoints/*' names several")
        self.checkpoint = CheckpointLine(pattern, every_s, int(keep), target + colon + name, within_s, number, command)

    def _container(self, number: int, tokens: Sequence[Token]) -> None:
        if not tokens:
            raise DirectiveSyntaxError("missing image", _usage("container"))
        if _REGISTRY.match(tokens[0].text):
            source = _image_reference(tokens[0].text)
            name: str | None = REGISTRY_IMAGE
        else:
            source = _location_pattern(tokens[0], "source")
            name = literal_text(source.rpartition("/")[2])
        if has_wildcards(source) or not name or _name_fault(name) or not name.isprintable():
            raise DirectiveSyntaxError(
                f"{quote_pattern(source)} is not the plain name of one image", "Name one file, such as images/torch.sif"
            )
        if len(tokens) > 1:
            _unexpected(tokens[1], (), "container")
        if self.container:
            raise DirectiveSyntaxError(f"line {self.container_line} already names the container", "Remove one of them")
        self._input(StageIn(source, name, line=number))
        self.container, self.container_line = name, number

    def _volume(self, number: int, tokens: Sequence[Token]) -> None:
        if not tokens:
            raise DirectiveSyntaxError("missing name", _usage("volume"))
        name, text = tokens[0].text, " ".join(token.text for token in tokens[1:])
        if not _VOLUME.fullmatch(name):
            allowed = "NAME consists of 1 to 63 letters, digits, '-' and '_', and begins with a letter or a digit"
            raise DirectiveSyntaxError(f"{quote_token(name)} is not a valid volume name", allowed)
        size = parse_size(text) if text else 0
        if text and not size:
            raise DirectiveSyntaxError(
                f"{quote_token(text)} is not a size", f"{_usage('volume')}. SIZE is {SIZE_FORMAT}"
            )
        if self.volume is not None:
            raise DirectiveSyntaxError(
                f"line {self.volume.line} already names a volume", "A job has one volume at most"
            )
        self.volume = VolumeLine(name, size or 0, number)

    def _workdir(self, number: int, tokens: Sequence[Token]) -> None:
        if tokens and tokens[0].text != "off":
            _unexpected(tokens[0], ("off",), "workdir")
        if len(tokens) > 1:
            _unexpected(tokens[1], (), "workdir")
        wanted = not tokens
        if self.workdir not in (None, wanted):
            raise DirectiveSyntaxError("another line says the contrary of the working directory", "Remove one of them")
        if wanted and self.workdir is None:
            other = self.names.setdefault(WORKDIR_INPUT, number)
            if other != number:
                named = f"line {other} already has an input {WORKDIR_INPUT}"
                raise DirectiveSyntaxError(named, "Give that one another name with 'as NAME'")
        self.workdir = wanted

    def _help(self, number: int, tokens: Sequence[Token]) -> None:
        del number, tokens
        raise DirectiveSyntaxError("job not submitted", directive_help())


_CHECKPOINT_OPTIONS = ("every", "keep", "signal", "command", "within")
_SIGNALS = ("USR1", "USR2", "HUP", "INT", "QUIT", "TERM", "CONT", "URG", "WINCH")
MAX_CHECKPOINTS = 10
"""So many of a job are kept at most."""
MIN_CHECKPOINT_INTERVAL_S = 10.0
MAX_CHECKPOINT_INTERVAL_S = 7 * 86400.0
MAX_CHECKPOINT_WRITING_S = 3600.0
MAX_COMMAND_BYTES = 4096


def _job_command(tokens: Sequence[Token], options: Mapping[str, str]) -> str:
    """The shell command of ``command=``; empty: none is given. Raises DirectiveSyntaxError."""
    command = options.get("command", "")
    if "command" not in options:
        return ""
    if "signal" in options:
        raise DirectiveSyntaxError("signal= and command= are both given", "Use one of them")
    if not command.strip():
        raise DirectiveSyntaxError("command= is empty", "Name a command, such as command='./save.sh'")
    if len(command.encode("utf-8", "surrogateescape")) > MAX_COMMAND_BYTES:
        raise DirectiveSyntaxError("command= is too long", f"Use at most {MAX_COMMAND_BYTES} bytes, or write a script")
    (token,) = (token for token in tokens if token.text.startswith("command="))
    if symbols := [name for name in token.variables if name in SYMBOLS]:
        raise DirectiveSyntaxError(
            f"%{symbols[0]} cannot be used in command=",
            "The command runs in the job: write '$SLURM_JOB_ID' and the like in single quotes, and %% for %",
        )
    return command


def _span(option: str, text: str, least: float, most: float) -> float:
    """Seconds of an option. Raises DirectiveSyntaxError."""
    seconds = parse_span(text)
    if seconds is None or not least <= seconds <= most:
        wrong = f"{option}={quote_token(text)} is not a length of time from {span_text(least)} to {span_text(most)}"
        raise DirectiveSyntaxError(wrong, "Write a number and s, m, h or d, such as 90s or 15m")
    return seconds


def _usage(directive: str) -> str:
    return f"Usage: {PREFIX} {USAGE[directive]}"


def _known_directives() -> str:
    return f"Directives: {', '.join(USAGE)}. {PREFIX} help explains them"


def _did_you_mean(word: str, known: Sequence[str] | dict[str, Callable[[int, Sequence[Token]], None]]) -> str:
    close = get_close_matches(word[:40].lower(), list(known), 1, 0.6)
    return f", did you mean {close[0]}?" if close else ""


def _unexpected(token: Token, known: Sequence[str], directive: str) -> None:
    wrong = f"unexpected {quote_token(token.text)}{_did_you_mean(token.text, known)}"
    raise DirectiveSyntaxError(wrong, f"{_usage(directive)}. Quote paths with blanks")


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
            raise DirectiveSyntaxError(
                "missing name after 'as'" if not name else "give 'as NAME' only once", _usage(directive)
            )
        elif token_text in [a.value for a in Access]:
            if access is not None:
                raise DirectiveSyntaxError("give read_only or copy only once", _usage(directive))
            access = Access(token_text)
            rest = rest[1:]
        else:
            _unexpected(rest[0], ("as", *(a.value for a in Access)), directive)
    return name, access or Access.READ_ONLY


_NAME_RULE = "NAME is one file name in $BURST_IN: no '/', not '.' or '..', at most 255 bytes"


def _input_name(token: Token) -> str:
    name = literal_text(token.pattern)
    if name is None:
        raise DirectiveSyntaxError(
            f"{quote_pattern(token.pattern)} is not a plain name", f"{_NAME_RULE}. Quote *, ?, [ and $"
        )
    if fault := _name_fault(name):
        raise DirectiveSyntaxError(f"{quote_token(name)} {fault}", _NAME_RULE)
    return name


def _name_fault(name: str) -> str:
    if name in ("", ".", ".."):
        return "is not a file name"
    if "/" in name:
        return "is a path, not a name"
    return "is too long" if len(name.encode("utf-8", "surrogateescape")) > 255 else ""


def _default_name(source: str) -> str:
    """The name that an input has where none is given: the last part of its source."""
    if has_wildcards(source):
        raise DirectiveSyntaxError(f"{quote_pattern(source)} does not name the input", "Add 'as NAME'")
    last = literal_text(source.rpartition("/")[2])
    if last is None or _name_fault(last):
        raise DirectiveSyntaxError(f"{quote_pattern(source)} does not end in a file name", "Add 'as NAME'")
    return last


def _image_reference(text: str) -> str:
    """An image in a registry, whole. Nothing in it means anything to Slurm or as a pattern."""
    expected = "Write docker://[REGISTRY/]NAME[:TAG|@sha256:DIGEST], such as docker://ghcr.io/lab/tools:1.2"
    shown = quote_token(text[:200])
    if not text.startswith(SCHEME):
        raise DirectiveSyntaxError(f"{shown} is of a kind that burstd does not convert", expected)
    try:
        return str(parse_reference(text))
    except ValueError as error:
        raise DirectiveSyntaxError(f"{shown} {error}", expected) from None


def _location_pattern(token: Token, what: str) -> str:
    """A source or destination, as a pattern."""
    pattern = token.pattern
    if not pattern:
        raise DirectiveSyntaxError(f"empty {what}", f"A {what} is {_LOCATIONS}")
    if "BURST_OUT" in token.variables:
        raise DirectiveSyntaxError(
            f"$BURST_OUT cannot be used in a {what}", f"Only the job has it. A {what} is {_LOCATIONS}"
        )
    if has_wildcards(pattern) and what == "destination":
        raise DirectiveSyntaxError(
            "a destination cannot contain wildcards", "Quote *, ? and [ to use them as characters"
        )
    url = _URL.fullmatch(pattern)
    if url is None:
        if _HOST.match(pattern):
            raise DirectiveSyntaxError(
                f"{quote_pattern(token.pattern)} looks like a path on another host",
                f"A {what} is {_LOCATIONS}. For a local path write ./...",
            )
        return pattern
    scheme, rest = url.groups()
    if scheme not in _SCHEMES:
        raise DirectiveSyntaxError(
            f"unknown scheme {quote_token(scheme)}://{_did_you_mean(scheme, _SCHEMES)}", f"A {what} is {_LOCATIONS}"
        )
    if has_wildcards(pattern):
        raise DirectiveSyntaxError(
            "wildcards work only in paths on premises", "For many objects, write a PREFIX/ and 'as NAME'"
        )
    bucket, _, key = rest.partition("/")
    if not _BUCKET.fullmatch(bucket):
        raise DirectiveSyntaxError(f"{quote_token(bucket)} is not a valid bucket name", f"Write {scheme}://BUCKET/KEY")
    if not key and what == "source":
        raise DirectiveSyntaxError(
            "the source is a whole bucket", f"Write {scheme}://BUCKET/KEY, or {scheme}://BUCKET/PREFIX/ as NAME"
        )
    return pattern


def _output_pattern(token: Token) -> str:
    """The pattern of an output: relative to $BURST_OUT."""
    pattern, allowed = token.pattern, "Outputs are paths in $BURST_OUT: write results/*.csv, or '.' for all"
    relative_part = pattern.removeprefix("${BURST_OUT}")
    if relative_part != pattern:
        pattern = relative_part.lstrip("/") if relative_part[:1] in ("", "/") else pattern
    elif pattern.startswith("/") or "HOME" in token.variables or _URL.fullmatch(pattern):
        raise DirectiveSyntaxError(f"{quote_pattern(token.pattern)} is not in $BURST_OUT", allowed)
    if "${BURST_OUT}" in pattern or "${HOME}" in pattern:
        raise DirectiveSyntaxError(f"{quote_pattern(token.pattern)} has a variable after its beginning", allowed)
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if any(literal_text(part) == ".." for part in parts):
        raise DirectiveSyntaxError(f"{quote_pattern(token.pattern)} leaves $BURST_OUT with '..'", allowed)
    return "/".join(parts) or "."
