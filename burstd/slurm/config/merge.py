"""slurm.conf and gres.conf with burstd's lines, and without them again: text in, text out.

What burstd changes of a site's line stays in the file: the line becomes a comment that begins with WAS, and the line
in its place ends in NEW. What is added stands between BEGIN and END. So ``unmerge`` finds all of it again, whatever
else was changed in the file since.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from burstd.domain.cloud.offer import Pool
from burstd.slurm.commands.parsing import expand_hosts
from burstd.slurm.config.check import entry_matches, spared_nodes, value_matches
from burstd.slurm.config.render import (
    NODE_PROLOG,
    POWERED_DOWN,
    PROLOG,
    TASK_PROLOG,
    SlurmConfOptions,
    SlurmConfSetting,
    gres_conf_lines,
    node_line,
    partition_lines,
    required_settings,
)
from burstd.slurm.hostlist import HostlistError, compress, expand

BEGIN = "# BEGIN burstd: written by 'burstctl init', taken out by 'burstctl uninit'"
BEGIN_UNENDED = f"{BEGIN}; the last line before it had no end"
END = "# END burstd"
_UNPAIRED = f"burstd's lines stand between '{BEGIN[:14]}' and '{END}', and one of these two is gone: write it again"
WAS = "#burstd was: "
NEW = " # by burstd"

_PAIR = re.compile(r'([A-Za-z_][\w.]*)[ \t]*=[ \t]*("[^"]*"|\S+)')
_INCLUDE = re.compile(r"\s*include\s+(\S+)", re.IGNORECASE)
_COMMENT = re.compile(r"(?<!\\)(?:\\\\)*(#)")
_CONTINUED = re.compile(r"(?<!\\)(?:\\\\)*\\\s*$")
_TABLES = {"nodename", "partitionname", "nodeset", "downnodes", "frontendname", "slurmctldhost"}
"""First keys of lines whose other keys are no settings of the cluster's."""
_NOTHING = {"", "none", "(null)"}


class MergeRefused(Exception):
    """A file cannot be changed by itself. The message says where, why, and what to do."""


@dataclass(slots=True)
class _Statement:
    """A line with those that continue it. ``first`` and ``end`` are line numbers from 0, ``end`` is not its own.

    ``place``: the line of slurm.conf itself that has it, or includes the file that does.
    """

    file: Path
    first: int
    end: int
    text: str
    place: int
    edits: dict[str, str] = field(default_factory=dict)
    """New values by key, in small letters."""

    @property
    def pairs(self) -> dict[str, str]:
        return {key.lower(): value.strip('"') for key, value in _PAIR.findall(self.text)}

    @property
    def kind(self) -> str:
        """Its first key, in small letters."""
        match = _PAIR.match(self.text.lstrip())
        return match[1].lower() if match else ""

    def __str__(self) -> str:
        return f"{self.file}, line {self.first + 1}"

    def edited(self) -> str:
        """The line that stands in its place."""
        there = set(self.pairs)

        def replaced(match: re.Match[str]) -> str:
            value = self.edits.get(match[1].lower())
            return match[0] if value is None else f"{match[1]}={value}"

        more = [f"{key.capitalize()}={value}" for key, value in self.edits.items() if key not in there]
        return " ".join([_PAIR.sub(replaced, self.text).strip(), *more]) + NEW


def included(text: str) -> list[str]:
    """The files that a configuration file names in its Include lines."""
    matches = (_INCLUDE.match(statement.text) for statement in _statements(Path(), text))
    return [match[1] for match in matches if match]


def written_settings(files: Mapping[Path, str]) -> dict[str, tuple[str, str]]:
    """The value of each setting of slurm.conf (the first file) by its name in small letters, and its file and line.

    Raises MergeRefused.
    """
    found: dict[str, tuple[str, str]] = {}
    for statement in _read(next(iter(files)), files):
        if statement.kind not in _TABLES:
            found |= {key: (value, str(statement)) for key, value in statement.pairs.items()}
    return found


def merge_slurm_conf(files: Mapping[Path, str], pools: Sequence[Pool], options: SlurmConfOptions) -> dict[Path, str]:
    """The files that change, whole: slurm.conf (the first one) with what the pools need, or files that it includes.

    A recommended setting that the site has already stays as it is. Raises MergeRefused.
    """
    texts = unmerge_files(files)
    main = next(iter(texts))
    statements = list(_read(main, texts))
    added = [line for setting in required_settings(pools, options) for line in _set(setting, statements)]
    own = _own_nodes(statements, pools)
    known = _join_partitions(statements, pools, own)
    exposed = _exposed_nodes(statements, own, known, options.onprem_partitions)
    added += _spare(exposed, statements) if exposed else []
    added += [node_line(pool) for pool in pools]
    added += partition_lines(
        pools, options.workdir_partitions, known, options.default_memory_mib, options.default_gpu_memory_mib
    )
    default = next((s.place for s in statements if s.pairs.get(s.kind, "").upper() == "DEFAULT"), None)
    return _changed(files, texts, statements, {main: (default, added)})


def merge_gres_conf(
    files: Mapping[Path, str], pools: Sequence[Pool], options: SlurmConfOptions, slurm_conf: Mapping[Path, str]
) -> dict[Path, str]:
    """The same of gres.conf, where pools have GRES. Lines for all nodes become lines for those of the site.

    ``slurm_conf``: the site's, which has their names. Raises MergeRefused.
    """
    texts = unmerge_files(files)
    main = next(iter(texts))
    statements = list(_read(main, texts))
    lines = gres_conf_lines(pools, options).splitlines()
    conf = unmerge_files(slurm_conf)
    own = _own_nodes(list(_read(next(iter(conf)), conf)), pools)
    for statement in statements if lines and own else ():
        if statement.kind in ("name", "autodetect") and "nodename" not in statement.pairs:
            statement.text = f"NodeName={compress(own)} {statement.text.strip()}"
            statement.edits["nodename"] = compress(own)
    return _changed(files, texts, statements, {main: (None, lines)} if lines else {})


def unmerge(text: str) -> str:
    """The text as it was before a merge, with what was changed since elsewhere.

    Raises MergeRefused where BEGIN or END was taken away: nothing else tells burstd's lines from the site's.
    """
    found: list[str] = []
    inside = False
    for line in _lines(text):
        bare = line.rstrip("\n")
        begins = bare in (BEGIN, BEGIN_UNENDED)
        if begins or bare == END:
            if begins == inside:
                raise MergeRefused(_UNPAIRED)
            inside = begins
            if bare == BEGIN_UNENDED and found:
                found[-1] = found[-1].removesuffix("\n")
        elif not inside and not bare.endswith(NEW):
            found.append(line.removeprefix(WAS))
    if inside:
        raise MergeRefused(_UNPAIRED)
    return "".join(found)


def unmerge_files(files: Mapping[Path, str]) -> dict[Path, str]:
    """The same of each. Raises MergeRefused with the file's name."""
    texts = {}
    for path, text in files.items():
        try:
            texts[path] = unmerge(text)
        except MergeRefused as error:
            raise MergeRefused(f"{path}: {error}") from None
    return texts


def _lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _statements(file: Path, text: str) -> Iterator[_Statement]:
    """All that is no comment, as Slurm's parser joins lines: a comment ends its line, and so no other follows it."""
    lines, joined, first = _lines(text), "", 0
    for number, line in enumerate(lines):
        bare = line.rstrip("\n")
        comment = _COMMENT.search(bare)
        bare = bare[: comment.start(1)] if comment else bare
        continued = bool(_CONTINUED.search(bare)) and number + 1 < len(lines)
        joined += bare.rstrip()[:-1] if continued else bare
        if not continued:
            if joined.strip():
                yield _Statement(file, first, number + 1, joined, first)
            joined, first = "", number + 1


def _read(file: Path, texts: Mapping[Path, str], place: int | None = None, depth: int = 0) -> Iterator[_Statement]:
    """All statements in Slurm's order, those of included files in the place of the Include line."""
    for statement in _statements(file, texts[file]):
        statement.place = statement.first if place is None else place
        match = _INCLUDE.match(statement.text)
        if match is None:
            yield statement
            continue
        path = file.parent / match[1]
        if path not in texts or depth > 8:
            raise MergeRefused(f"{statement}: {path} cannot be read; mend the Include line, or write the lines there")
        yield from _read(path, texts, statement.place, depth + 1)


def _set(setting: SlurmConfSetting, statements: Sequence[_Statement]) -> list[str]:
    """Edits the line that has the setting; else the lines to add. Of several lines Slurm takes the last."""
    key = setting.name.lower()
    there = [s for s in statements if s.kind not in _TABLES and key in s.pairs]
    if not there:
        note = "recommended: " if setting.recommended else ""
        return [f"# {note}without it {setting.consequence}", setting.line]
    last = there[-1]
    value = last.edits.get(key, last.pairs[key])
    if setting.name in (PROLOG, NODE_PROLOG, TASK_PROLOG):
        if value.rpartition("/")[2] != setting.values[0].rpartition("/")[2]:
            raise MergeRefused(
                f"{last} has {setting.name}={value}, and burstd needs {setting.line}: name there a program that runs "
                "both, and ends with the first status that is not 0. Or leave the trees out (--no-trees)"
            )
        return []
    new = _merged_value(setting, value)
    if new != value:
        last.edits[key] = new
    return []


def _merged_value(setting: SlurmConfSetting, value: str) -> str:
    if not setting.merge:
        return value if setting.recommended or value_matches(setting.name, setting.values[0], value) else setting.line[
            len(setting.name) + 1 :
        ]  # fmt: skip
    words = [word.strip() for word in value.split(",") if word.strip().lower() not in _NOTHING]
    there = {name: rest for name, _, rest in (word.partition("=") for word in words)}
    for wanted in setting.values:
        name = wanted.partition("=")[0]
        if entry_matches(wanted, there) or (setting.recommended and name in there):
            continue
        words = [*(word for word in words if word.partition("=")[0] != name), wanted]
    return ",".join(words)


def _own_nodes(statements: Sequence[_Statement], pools: Sequence[Pool]) -> list[str]:
    """The site's own nodes by name, in the order of the file."""
    slots = {slot for pool in pools for slot in pool.slots}
    own: list[str] = []
    for statement in statements:
        if statement.kind != "nodename" or statement.pairs["nodename"].upper() == "DEFAULT":
            continue
        try:
            names = expand(statement.pairs["nodename"])
        except HostlistError as error:
            raise MergeRefused(f"{statement}: {error}") from None
        taken = slots.intersection(names)
        if taken:
            raise MergeRefused(
                f"{statement} has a node {min(taken)} already: give the pools' nodes other names, or take the line out"
            )
        own += names
    return own


def _join_partitions(statements: Sequence[_Statement], pools: Sequence[Pool], own: Sequence[str]) -> set[str]:
    """Gives the pools' nodes to partitions that exist, and those alone; the names of these partitions."""
    slots: dict[str, list[str]] = {}
    for pool in pools:
        for name in pool.partitions:
            slots.setdefault(name, []).extend(pool.slots)
    known = set()
    for statement in statements:
        if statement.kind != "partitionname":
            continue
        name, nodes = statement.pairs["partitionname"], statement.pairs.get("nodes", "")
        if nodes.upper() == "ALL":
            if not own:
                raise MergeRefused(f"{statement}: partition {name} has all nodes, and slurm.conf names none: name them")
            nodes = compress(own)
            statement.edits["nodes"] = nodes
        if name in slots:
            known.add(name)
            statement.edits["nodes"] = ",".join(filter(None, (nodes, compress(slots[name]))))
    return known


def _exposed_nodes(
    statements: Sequence[_Statement], own: Sequence[str], joined: Collection[str], kept: Collection[str]
) -> list[str]:
    """The site's own nodes in partitions that burstd's join, and in none that power saving leaves alone."""
    parts: dict[str, set[str]] = {}
    spared = {name for s in statements for name in s.pairs.get("suspendexcparts", "").split(",")}.union(kept)
    for statement in statements:
        if statement.kind == "partitionname":
            names = set(expand_hosts(statement.pairs.get("nodes", "")))
            # A name that is no node is a NodeSet's, which may have any.
            parts[statement.pairs["partitionname"]] = names if names.issubset(own) else set(own)
    exposed = {node for name in set(joined) - spared for node in parts[name]}
    return [node for node in own if node in exposed.difference(*(parts.get(name, ()) for name in spared))]


def _spare(nodes: Sequence[str], statements: Sequence[_Statement]) -> list[str]:
    """Adds them to SuspendExcNodes where the site has it; else the lines to add."""
    there = [s for s in statements if s.kind not in _TABLES and "suspendexcnodes" in s.pairs]
    if not there:
        return [f"# without it {POWERED_DOWN}", f"SuspendExcNodes={compress(nodes)}"]
    value = there[-1].pairs["suspendexcnodes"]
    left = set(nodes) - spared_nodes(value)
    if left:
        there[-1].edits["suspendexcnodes"] = f"{value},{compress([node for node in nodes if node in left])}"
    return []


def _changed(
    files: Mapping[Path, str],
    texts: Mapping[Path, str],
    statements: Sequence[_Statement],
    blocks: Mapping[Path, tuple[int | None, Sequence[str]]],
) -> dict[Path, str]:
    """The files that differ from those given. ``blocks``: before which line of a file (None: its end) what is added."""
    changed = {}
    for path, text in texts.items():
        lines = _lines(text)
        edited = {s.first: s for s in statements if s.file == path and s.edits}
        covered = {n for s in edited.values() for n in range(s.first, s.end)}
        place, added = blocks.get(path, (None, ()))
        block = [f"{line}\n" for line in (BEGIN, *added, END)]
        out: list[str] = []
        for number, line in enumerate(lines):
            if added and number == place:
                out += block
            out.append(line)
            statement = edited.get(number)
            if statement is not None:
                out[-1:] = [WAS + old for old in lines[number : statement.end]]
                _end_line(out)
                out.append(statement.edited() + "\n")
            elif number in covered:
                out.pop()
        at_end = added if place is None else ()
        unended = (edited or added) and text and not text.endswith("\n")
        if at_end or unended:
            _end_line(out)
            out += [f"{line}\n" for line in (BEGIN_UNENDED if unended else BEGIN, *at_end, END)]
        if (new := "".join(out)) != files[path]:
            changed[path] = new
    return changed


def _end_line(lines: list[str]) -> None:
    if lines and not lines[-1].endswith("\n"):
        lines[-1] += "\n"
