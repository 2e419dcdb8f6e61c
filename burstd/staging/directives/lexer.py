"""The words of a ``#BURST`` line: quoting as in a shell, wildcards, and names with any byte in them.

Words are separated by blanks. ``\\c``, ``'...'`` and ``"..."`` quote as in a shell; ``$'...'`` takes ``\\n``, ``\\t``,
``\\xHH``, ``\\OOO`` and so on for what cannot be typed. Nothing is run. ``~``, ``$HOME``, ``$USER`` and Slurm's
``%A %a %d %j %u %x`` stand for what they are; other variables are not known before the job runs. A ``#`` at
the beginning of a word makes the rest a comment.

A path is kept as a *pattern*: a quoted ``*``, ``?``, ``[`` or ``$`` stands in brackets (``[*]``), as in glob.escape,
so that an unquoted one keeps its meaning, and a variable is ``${NAME}``. Bytes that are not UTF-8 are surrogates.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

BLANKS = " \t\r\v\f"
VARIABLES = ("HOME", "USER", "BURST_OUT")
SYMBOLS: Mapping[str, str] = {
    "A": "the array's job id", "a": "the array task's id", "d": "the working directory", "j": "the job's id",
    "u": "the user's name", "x": "the job's name",
}  # fmt: skip
"""What Slurm puts for ``%A`` and so on in a line of directives."""
_SPECIAL = "*?[$"
_SAFE = re.compile(r"[A-Za-z0-9_./:@%+=,^-]+")
_ESCAPED = re.compile(r"\[([*?\[$])\]")
_VARIABLE = re.compile(r"\$\{([A-Za-z_]+)\}")
_NAME = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_CODE = re.compile(rb"\\(?:x([0-9A-Fa-f]{1,2})|([0-7]{1,3})|(.))", re.DOTALL)
_LETTERS = {b"a": b"\a", b"b": b"\b", b"e": b"\x1b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_CODES = {value: "\\" + key.decode() for key, value in _LETTERS.items()} | {b"\\": r"\\", b"'": r"\'"}


class DirectiveSyntaxError(Exception):
    """A line or a word of it is malformed. ``problem`` is a clause, ``expected`` the sentence with the remedy."""

    def __init__(self, problem: str, expected: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.expected = expected


class TokenKind(Enum):
    """How a part of a word is written."""

    BARE = "bare"
    QUOTED = "quoted"
    VARIABLE = "variable"


@dataclass(frozen=True, slots=True)
class Token:
    """One word, as parts: a character, or the name of a variable, and how it was written."""

    parts: tuple[tuple[str, TokenKind], ...]

    @property
    def text(self) -> str:
        """The word without its quotes; a variable is ``${NAME}``."""
        return canonical("".join(f"${{{text}}}" if kind is TokenKind.VARIABLE else text for text, kind in self.parts))

    @property
    def variables(self) -> tuple[str, ...]:
        """Names of the variables in it."""
        return tuple(text for text, kind in self.parts if kind is TokenKind.VARIABLE)

    @property
    def pattern(self) -> str:
        """The word as a pattern. Raises DirectiveSyntaxError."""
        out: list[str] = []
        index = 0
        stops = self._stops()
        while index < len(self.parts):
            text, kind = self.parts[index]
            if kind is TokenKind.VARIABLE:
                out.append(f"${{{text}}}")
            elif kind is TokenKind.BARE and text in "*?":
                out.append(text)
            elif kind is TokenKind.BARE and text == "[" and (end := self._class_end(index, stops)):
                out += [t for t, _ in self.parts[index : end + 1]]
                index = end
            else:
                out.append(escape_pattern(text))
            index += 1
        return canonical("".join(out))

    def _stops(self) -> list[int]:
        """For each part the first from there on at which a class ends, breaks off or goes wrong.

        Looked up once for the word: a line of nothing but ``[`` would have each of them look to its end.
        """
        stop = len(self.parts)
        stops = [stop] * (len(self.parts) + 3)
        for index in range(len(self.parts) - 1, -1, -1):
            text, kind = self.parts[index]
            if kind is TokenKind.VARIABLE or text in "/]" or (kind is TokenKind.QUOTED and text in "!^-"):
                stop = index
            stops[index] = stop
        return stops

    def _class_end(self, start: int, stops: Sequence[int]) -> int:
        """Index of the bracket that closes a class such as ``[a-z]``; 0: none does."""
        first = start + 1
        if self.parts[first : first + 1] == (("!", TokenKind.BARE),):
            first += 1
        closing = ("]", TokenKind.BARE)
        end = stops[first + 1] if self.parts[first : first + 1] == (closing,) else stops[first]
        if end == len(self.parts) or self.parts[end][1] is TokenKind.VARIABLE or self.parts[end][0] == "/":
            return 0
        if self.parts[end] == closing:
            return end
        raise DirectiveSyntaxError(
            f"[...] contains a quoted {self.parts[end][0]}", "Use ? for one character, or several lines"
        )


def canonical(text: str) -> str:
    """The same with bytes that are UTF-8 after all as characters, as os.fsdecode gives them."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


def escape_pattern(text: str) -> str:
    """A pattern that means this text and nothing else."""
    return "".join(f"[{c}]" if c in _SPECIAL else c for c in text)


def literal_text(pattern: str) -> str | None:
    """The text that a pattern without wildcards and variables means; None: it has some."""
    if any(c in _SPECIAL for c in _ESCAPED.sub("", pattern)):
        return None
    return _ESCAPED.sub(r"\1", pattern)


def has_wildcards(pattern: str) -> bool:
    """Whether a pattern may match several paths."""
    return any(c in "*?[" for c in _ESCAPED.sub("", pattern))


def substitute_variables(pattern: str, values: Mapping[str, str]) -> str | None:
    """The pattern with its variables (``HOME``, ``USER``, ``j`` ...) filled in; None: one has no value so far."""
    if any(name not in values for name in _VARIABLE.findall(pattern)):
        return None
    return _VARIABLE.sub(lambda found: escape_pattern(values[found[1]]), pattern)


def resolve_pattern(pattern: str, values: Mapping[str, str], work_dir: str = "") -> str | None:
    """Where a source, destination or output lies: absolute, or a URL, or as it is where ``work_dir`` is empty.

    The plain path where it has no wildcards, else a pattern with ``[*]`` for what was quoted.
    None: a variable has no value so far.
    """
    filled = substitute_variables(pattern, values)
    if filled is None:
        return None
    if work_dir and not filled.startswith(("/", "s3://", "swift://", "docker://")):
        filled = f"{escape_pattern(work_dir)}/{filled}"
    plain = literal_text(filled)
    return filled if plain is None else plain


def quote_token(text: str) -> str:
    """A word of a line that means this text."""
    text = text.replace("%", "%%")
    if _SAFE.fullmatch(text):
        return text
    if "'" not in text and text.isprintable():
        return f"'{text}'"
    return "$'" + "".join(c if c.isprintable() and c not in "\\'" else _coded(c) for c in text) + "'"


def _coded(char: str) -> str:
    data = char.encode("utf-8", "surrogateescape")
    return _CODES.get(data) or "".join(f"\\x{byte:02x}" for byte in data)


def quote_pattern(pattern: str) -> str:
    """A word of a line that means this pattern, as ``Token.pattern`` gives it."""
    out: list[str] = []
    literal_chars: list[str] = []

    def raw(text: str) -> None:
        if literal_chars:
            out.append(quote_token("".join(literal_chars)))
            literal_chars.clear()
        out.append(text)

    index = 0
    while index < len(pattern):
        char = pattern[index]
        if found := _ESCAPED.match(pattern, index):
            literal_chars.append(found[1])
            index = found.end()
            continue
        if found := _VARIABLE.match(pattern, index):
            raw(f"%{found[1]}" if found[1] in SYMBOLS else found[0])
            index = found.end()
            continue
        if char == "[":
            end = pattern.index("]", index + (3 if pattern[index + 1 : index + 2] == "!" else 2))
            raw("[" + "".join(c if c in "!]-^*?[" else quote_token(c) for c in pattern[index + 1 : end]) + "]")
            index = end
        elif char in "*?":
            raw(char)
        else:
            literal_chars.append(char)
        index += 1
    raw("")
    return "".join(out) or "''"


def tokenize(line: str, *, symbols: bool = True) -> list[Token]:
    """Cuts a line into words. ``symbols``: ``%j`` and the like are variables, and ``%%`` is a percent sign.

    Raises DirectiveSyntaxError.
    """
    return _Lexer(line, symbols=symbols).tokens()


class _Lexer:
    """One pass over a line."""

    def __init__(self, line: str, *, symbols: bool) -> None:
        self._line = line
        self._symbols = symbols
        self._at = 0
        self._parts: list[tuple[str, TokenKind]] = []
        self._tokens: list[Token] = []
        self._in_token = False
        """A word has begun, if only with empty quotes."""

    def tokens(self) -> list[Token]:
        while self._at < len(self._line):
            char = self._line[self._at]
            if char in BLANKS:
                self._end_token()
                self._at += 1
            elif char == "#" and not self._in_token:
                break
            else:
                self._scan(char)
        self._end_token()
        return self._tokens

    def _end_token(self) -> None:
        if self._in_token:
            if any(text == "\0" for text, _ in self._parts):
                raise DirectiveSyntaxError("a word contains a NUL byte", "File names cannot contain NUL")
            self._tokens.append(Token(tuple(self._parts)))
        self._parts, self._in_token = [], False

    def _scan(self, char: str) -> None:
        first, self._in_token = not self._in_token, True
        if char == "'":
            self._quoted(self._until("'", self._at + 1))
        elif self._line.startswith("$'", self._at):
            self._coded()
        elif char == '"':
            self._at += 1
            self._double()
        elif char == "\\":
            if self._at + 1 == len(self._line):
                raise DirectiveSyntaxError(
                    "the line ends in a backslash", "Continue it on the next line, which must begin with #BURST too"
                )
            self._quoted(self._line[self._at + 1])
            self._at += 2
        elif char == "~" and first:
            self._home()
        else:
            self._char(char, TokenKind.BARE)

    def _until(self, end: str, start: int) -> str:
        """The text up to a closing quote, and past it."""
        stop = self._line.find(end, start)
        if stop < 0:
            raise DirectiveSyntaxError(f"missing closing {end}", f"Close the quote, or write \\{end} for the character")
        self._at = stop + 1
        return self._line[start:stop]

    def _quoted(self, text: str) -> None:
        index = 0
        while index < len(text):
            if text[index] == "%" and self._symbols:
                self._symbol(text[index : index + 2])
                index += 2
            else:
                self._parts.append((text[index], TokenKind.QUOTED))
                index += 1

    def _symbol(self, pair: str) -> None:
        """Slurm puts these in whether they are quoted or not, and leaves out those that it does not know."""
        if pair == "%%":
            self._parts.append(("%", TokenKind.QUOTED))
        elif pair[1:] in SYMBOLS:
            self._parts.append((pair[1:], TokenKind.VARIABLE))
        else:
            known = ", ".join(f"%{symbol} ({means})" for symbol, means in SYMBOLS.items())
            raise DirectiveSyntaxError(f"unknown symbol {pair}", f"Write %% for a percent sign. Known symbols: {known}")

    def _coded(self) -> None:
        """``$'...'``."""
        start = stop = self._at + 2
        while stop < len(self._line) and self._line[stop] != "'":
            stop += 2 if self._line[stop] == "\\" else 1
        if stop >= len(self._line):
            raise DirectiveSyntaxError("missing closing ' after $'", "Close the quote, or write \\' for the character")
        self._at = stop + 1
        text = self._line[start:stop]
        for index, piece in enumerate(re.split(r"(%.?)", text) if self._symbols else [text]):
            if index % 2:
                self._symbol(piece)
                continue
            data = _CODE.sub(_decoded, piece.encode("utf-8", "surrogateescape"))
            self._parts += [(c, TokenKind.QUOTED) for c in data.decode("utf-8", "surrogateescape")]

    def _double(self) -> None:
        while self._at < len(self._line):
            char = self._line[self._at]
            if char == '"':
                self._at += 1
                return
            if char == "\\" and self._line[self._at + 1 : self._at + 2] in ("$", "`", '"', "\\"):
                self._parts.append((self._line[self._at + 1], TokenKind.QUOTED))
                self._at += 2
            else:
                self._char(char, TokenKind.QUOTED)
        raise DirectiveSyntaxError('missing closing "', 'Close the quote, or write \\" for the character')

    def _char(self, char: str, kind: TokenKind) -> None:
        """One character outside of quotes, or within double ones."""
        if char == "%" and self._symbols:
            self._symbol(self._line[self._at : self._at + 2])
            self._at += 2
            return
        if char == "`" or self._line.startswith("$(", self._at):
            raise DirectiveSyntaxError(
                "commands are not run here", "Write the output of the command, or quote the character with \\"
            )
        if char == "$":
            self._variable()
            return
        self._parts.append((char, kind))
        self._at += 1

    def _variable(self) -> None:
        found = _NAME.match(self._line, self._at)
        name = (found[1] or found[2]) if found else ""
        if found is None or name not in VARIABLES:
            wrong = f"${name} is not known before the job runs" if name else "$ is not followed by a variable's name"
            job = " (%j is the job's id)" if name in ("SLURM_JOB_ID", "SLURM_JOBID") else ""
            known = f"Known variables: $HOME, $USER{job}"
            raise DirectiveSyntaxError(wrong, f"{known}. Write \\$, or use single quotes, for a dollar sign")
        self._parts.append((name, TokenKind.VARIABLE))
        self._at = found.end()

    def _home(self) -> None:
        follows = self._line[self._at + 1 : self._at + 2]
        if follows and follows not in "/" + BLANKS:
            raise DirectiveSyntaxError("~USER is not supported", "Write the full path, or \\~ for the character")
        self._parts.append(("HOME", TokenKind.VARIABLE))
        self._at += 1


def _decoded(found: re.Match[bytes]) -> bytes:
    """The byte of one escape in ``$'...'``."""
    if found[1]:
        return bytes([int(found[1], 16)])
    if found[2] and int(found[2], 8) < 256:
        return bytes([int(found[2], 8)])
    if found[3] in (b"\\", b"'", b'"', b"?"):
        return found[3]
    if found[3] in _LETTERS:
        return _LETTERS[found[3]]
    shown = found[0].decode("utf-8", "replace")
    raise DirectiveSyntaxError(f"unknown escape {shown} in $'...'", r"Use \n, \t, \\, \', \xHH or \OOO")
