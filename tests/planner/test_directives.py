"""What #BURST lines ask for, and what is said of those that are wrong."""

from __future__ import annotations

import fnmatch
import re
import string
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.domain.staging import Access, CheckpointLine, Directives, OutputCondition, StageIn, StageOut, VolumeLine
from burstd.share import share_path
from burstd.staging.directives.lexer import (
    canonical,
    escape_pattern,
    literal_text,
    quote_pattern,
    quote_token,
    resolve_pattern,
    tokenize,
)
from burstd.staging.directives.parser import USAGE, directive_help, format_directives, parse_directives

R, C = Access.READ_ONLY, Access.COPY


def read(*lines: str) -> Directives:
    found, faults = parse_directives("#!/bin/sh\n" + "\n".join(lines) + "\necho hello\n")
    assert faults == ()
    return found


def wrong(*lines: str) -> str:
    """What is wrong in the one line that is."""
    [fault] = parse_directives("#!/bin/sh\n" + "\n".join(lines) + "\n")[1]
    assert fault.line == len(lines) + 1
    assert fault.text == lines[-1]
    assert fault.expected
    return fault.problem


NO_IMAGE = "is no name of an image, which consists of small letters, digits, '.', '_' and '-'"


@pytest.mark.parametrize(
    ("line", "source", "name", "access"),
    [
        ("/data/hg38.fa", "/data/hg38.fa", "hg38.fa", R),
        ("data/hg38 copy", "data/hg38", "hg38", C),
        ("../x as y read_only", "../x", "y", R),
        ("x copy as y", "x", "y", C),
        ("runs/2024-*/out.csv as runs", "runs/2024-*/out.csv", "runs", R),
        ("runs/[a-c]?.csv as runs", "runs/[a-c]?.csv", "runs", R),
        ("data/ as data", "data/", "data", R),
        ("~/x", "${HOME}/x", "x", R),
        ("$HOME/x", "${HOME}/x", "x", R),
        ('"${HOME}/my data"', "${HOME}/my data", "my data", R),
        ("/scratch/$USER/x", "/scratch/${USER}/x", "x", R),
        ("'my data'", "my data", "my data", R),
        ("my\\ data", "my data", "my data", R),
        ("a'b c'd\"e f\"", "ab cde f", "ab cde f", R),
        ("'what*' as w", "what[*]", "w", R),
        ("'what*'", "what[*]", "what*", R),
        ("\\[1].csv", "[[]1].csv", "[1].csv", R),
        ("[1.csv", "[[]1.csv", "[1.csv", R),
        (r"$'two\nlines'", "two\nlines", "two\nlines", R),
        (r"$'caf\xc3\xa9\x21\041\t'", "café!!\t", "café!!\t", R),
        (r"$'\xff'", "\udcff", "\udcff", R),
        ("\udcff\udcfe", "\udcff\udcfe", "\udcff\udcfe", R),
        ("x # a comment", "x", "x", R),
        ("a#b", "a#b", "a#b", R),
        ("part-%a.csv as part", "part-${a}.csv", "part", R),
        ("100%%.csv", "100%.csv", "100%.csv", R),
        ("s3://lab/raw/a.bin", "s3://lab/raw/a.bin", "a.bin", R),
        ("s3://lab/raw/ as raw", "s3://lab/raw/", "raw", R),
        ("s3://lab/'odd*'", "s3://lab/odd[*]", "odd*", R),
        ("swift://box/a/b", "swift://box/a/b", "b", R),
        ("as as as", "as", "as", R),
    ],
)
def test_stage_in(line: str, source: str, name: str, access: Access) -> None:
    assert read(f"#BURST stage_in {line}").stage_in == (StageIn(source, name, access, 2),)


@pytest.mark.parametrize(
    ("line", "pattern", "destination", "when"),
    [
        ("results/*.csv to out", "results/*.csv", "out", OutputCondition.ALWAYS),
        (". to results/%j on success", ".", "results/${j}", OutputCondition.SUCCESS),
        ("$BURST_OUT to ~", ".", "${HOME}", OutputCondition.ALWAYS),
        ("$BURST_OUT/a//./b/ to x/ on failure", "a/b", "x/", OutputCondition.FAILURE),
        ('"${BURST_OUT}/a b" to /x on always', "a b", "/x", OutputCondition.ALWAYS),
        ("x to s3://lab/job-%j", "x", "s3://lab/job-${j}", OutputCondition.ALWAYS),
        ("x to s3://lab", "x", "s3://lab", OutputCondition.ALWAYS),
        ("to to 'a*'", "to", "a[*]", OutputCondition.ALWAYS),
    ],
)
def test_stage_out(line: str, pattern: str, destination: str, when: OutputCondition) -> None:
    assert read(f"#BURST stage_out {line}").stage_out == (StageOut(pattern, destination, when, 2),)


def test_dataset_and_scratch() -> None:
    found = read("#BURST dataset genomes@2024.1 as g", "#BURST\tdataset mnist copy", "#BURST scratch 1.5 TiB")
    assert found.stage_in == (StageIn("", "g", R, 2, "genomes@2024.1"), StageIn("", "mnist", C, 3, "mnist"))
    assert (found.scratch_bytes, found.shared_scratch_bytes) == (3 << 39, None)
    assert read("#BURST scratch shared").shared_scratch_bytes == 0
    both = read("#BURST scratch shared 2G", "#BURST scratch 1G")
    assert (both.scratch_bytes, both.shared_scratch_bytes) == (1 << 30, 2 << 30)


def test_container() -> None:
    found = read("#BURST container ~/images/torch.sif", "#BURST stage_in data")
    assert found.container == "torch.sif"
    assert found.stage_in[0] == StageIn("${HOME}/images/torch.sif", "torch.sif", R, 2)
    assert read("#BURST container s3://lab/torch.sif").container == "torch.sif"


def test_volume() -> None:
    assert read("#BURST volume corpus-2 100G").volume == VolumeLine("corpus-2", 100 << 30, 2)
    assert read("#BURST volume 2_b").volume == VolumeLine("2_b", 0, 2)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("state", CheckpointLine("state", 900.0, 2, "", 60.0, 2)),
        ("'a b'/step-*/ every=90s keep=10", CheckpointLine("a b/step-*", 90.0, 10, "", 60.0, 2)),
        ("$BURST_OUT/c signal=SIGUSR1 within=2m", CheckpointLine("c", 900.0, 2, "USR1", 120.0, 2)),
        ("c-%j signal=B:USR2 every=1.5h", CheckpointLine("c-${j}", 5400.0, 2, "B:USR2", 60.0, 2)),
        ("c command=./save.sh", CheckpointLine("c", 900.0, 2, "", 60.0, 2, "./save.sh")),
        (
            """c command='cd "$D" && ./save.sh 5%%' within=9s""",
            CheckpointLine("c", 900.0, 2, "", 9.0, 2, 'cd "$D" && ./save.sh 5%'),
        ),
    ],
)
def test_checkpoint(line: str, expected: CheckpointLine) -> None:
    assert read(f"#BURST checkpoint {line}").checkpoint == expected


def test_workdir() -> None:
    assert read("#BURST workdir").workdir
    assert read("#BURST workdir", "#BURST workdir").workdir, "as where the script and --bb say so"
    assert read("#BURST workdir off").workdir is False
    assert read("#BURST workdir off"), "a job with a line is staged"
    assert wrong("#BURST workdir", "#BURST workdir off") == "another line says the contrary of the working directory"
    assert wrong("#BURST workdir of") == "unexpected of, did you mean off?"
    assert wrong("#BURST workdir off x") == "unexpected x"
    assert wrong("#BURST stage_in a as workdir", "#BURST workdir") == "line 2 already has an input workdir"
    assert wrong("#BURST workdir", "#BURST stage_in workdir") == "line 2 already has an input workdir"


def test_the_lines_that_count_are_slurms() -> None:
    script = """\
#!/bin/bash
#SBATCH -n 1

#BURST stage_in a
# BURST stage_in comment
 #BURST stage_in never
#BURST stage_in late
"""
    found, faults = parse_directives(script)
    assert (found.stage_in, faults) == ((StageIn("a", "a", R, 4),), ())
    assert parse_directives("   \n#BURST nonsense") == (Directives(), ())
    assert parse_directives("cat <<EOF >job.sh\n#BURST nonsense\nEOF") == (Directives(), ())
    assert not Directives()


def test_a_line_goes_on_where_slurm_says_so() -> None:
    found, faults = parse_directives("#BURST stage_in \\\n#BURST   /data/a\\\n#BURST  as b\n#BURST scratch 1G\n")
    assert faults == ()
    assert found == Directives((StageIn("/data/a", "b", R, 1),), (), 1 << 30)
    for rest in ("", "\n# no directive", "\nsleep 1"):
        [fault] = parse_directives("#BURST stage_in a \\" + rest)[1]
        assert (fault.line, fault.problem) == (1, "the line ends in a backslash")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("", "missing directive"),
        ("  # nothing", "missing directive"),
        ("stage-in x", "unknown directive stage-in, did you mean stage_in?"),
        ("stageout x to y", "unknown directive stageout, did you mean stage_out?"),
        ("teleport x", "unknown directive teleport"),
        ("stage_in", "missing source"),
        ("stage_in ''", "empty source"),
        ("stage_in my data", "unexpected data"),
        ("stage_in x raed_only", "unexpected raed_only, did you mean read_only?"),
        ("stage_in x copy copy", "give read_only or copy only once"),
        ("stage_in x as", "missing name after 'as'"),
        ("stage_in x as a as b", "give 'as NAME' only once"),
        ("stage_in x as a/b", "a/b is a path, not a name"),
        ("stage_in x as ..", ".. is not a file name"),
        ("stage_in x as ''", "'' is not a file name"),
        ("stage_in x as a*", "a* is not a plain name"),
        (f"stage_in x as {'é' * 128}", f"{'é' * 128!r} is too long"),
        ("stage_in data/", "data/ does not end in a file name"),
        ("stage_in ..", ".. does not end in a file name"),
        ("stage_in ~", "${HOME} does not end in a file name"),
        ("stage_in *.csv", "*.csv does not name the input"),
        ("stage_in a*/x", "a*/x does not name the input"),
        ("stage_in part-%a.csv", "part-%a.csv does not end in a file name"),
        ("stage_in '/a", "missing closing '"),
        ('stage_in "/a', 'missing closing "'),
        ("stage_in $'/a\\'", "missing closing ' after $'"),
        (r"stage_in $'\q'", r"unknown escape \q in $'...'"),
        (r"stage_in $'\0'", "a word contains a NUL byte"),
        ("stage_in $SCRATCH/x", "$SCRATCH is not known before the job runs"),
        ("stage_in a$", "$ is not followed by a variable's name"),
        ("stage_in $(date)", "commands are not run here"),
        ("stage_in `date`", "commands are not run here"),
        ("stage_in ~bob/x", "~USER is not supported"),
        ("stage_in 5%", "unknown symbol %"),
        ("stage_in '5%z'", "unknown symbol %z"),
        ("stage_in $'5%'", "unknown symbol %"),
        (r"stage_in [a\-z] as x", "[...] contains a quoted -"),
        ("stage_in $BURST_OUT/x", "$BURST_OUT cannot be used in a source"),
        ("stage_in gs://lab/x", "unknown scheme gs://"),
        ("stage_in S3://lab/x", "unknown scheme S3://, did you mean s3?"),
        ("stage_in s3://lab", "the source is a whole bucket"),
        ("stage_in s3:///x", "'' is not a valid bucket name"),
        ("stage_in s3://lab/*.csv as x", "wildcards work only in paths on premises"),
        ("stage_in login1:/data/x", "login1:/data/x looks like a path on another host"),
        ("dataset", "missing dataset"),
        ("dataset a/b", "a/b is not a valid dataset name"),
        ("dataset a@", "a@ is not a valid dataset name"),
        ("stage_out", "missing output pattern"),
        ("stage_out x", "expected 'to DESTINATION' after x"),
        ("stage_out x to", "missing destination after 'to'"),
        ("stage_out x y", "expected 'to DESTINATION' after x, found 'y'"),
        ("stage_out my data to y", "expected 'to DESTINATION' after my, found 'data'"),
        ("stage_out x to y on", "missing condition after 'on'"),
        ("stage_out x to y on failed", "unknown condition failed, did you mean failure?"),
        ("stage_out x to y z", "unexpected z"),
        ("stage_out /x to y", "/x is not in $BURST_OUT"),
        ("stage_out ~/x to y", "${HOME}/x is not in $BURST_OUT"),
        ("stage_out a/../../x to y", "a/../../x leaves $BURST_OUT with '..'"),
        ("stage_out $BURST_OUT/../x to y", "${BURST_OUT}/../x leaves $BURST_OUT with '..'"),
        ("stage_out a/$BURST_OUT to y", "a/${BURST_OUT} has a variable after its beginning"),
        ("stage_out x to y*", "a destination cannot contain wildcards"),
        ("scratch", "missing size"),
        ("scratch 10", "10 is not a size"),
        ("scratch 0G", "0G is not a size"),
        ("scratch lots", "lots is not a size"),
        ("scratch shared lots", "lots is not a size"),
        ("scratch shared 0G", "0G is not a size"),
        ("container", "missing image"),
        ("container library://python:3", "library://python:3 is of a kind that burstd does not convert"),
        ("container docker://x%j", f"'docker://x${{j}}' 'x${{j}}' {NO_IMAGE}"),
        ("container docker://x y", "unexpected y"),
        ("stage_in docker://x", "unknown scheme docker://"),
        ("container images/*.sif", "images/*.sif is not the plain name of one image"),
        ("container x-%j.sif", "x-%j.sif is not the plain name of one image"),
        ("container images/", "images/ is not the plain name of one image"),
        ("container a.sif b", "unexpected b"),
        ("volume", "missing name"),
        ("volume ../x 1G", "../x is not a valid volume name"),
        ("volume -x 1G", "-x is not a valid volume name"),
        ("volume x 0G", "0G is not a size"),
        ("volume x 1G 2G", "'1G 2G' is not a size"),
        ("checkpoint", "missing path"),
        ("checkpoint .", "$BURST_OUT itself cannot be the checkpoint"),
        ("checkpoint /home/ada/state", "/home/ada/state is not in $BURST_OUT"),
        ("checkpoint a/../b", "a/../b leaves $BURST_OUT with '..'"),
        ("checkpoint state 15m", "unexpected 15m"),
        ("checkpoint state evry=15m", "unexpected evry=15m, did you mean every=?"),
        ("checkpoint state every=1m every=2m", "give every= only once"),
        ("checkpoint state every=15", "every=15 is not a length of time from 10 s to 7 d"),
        ("checkpoint state every=9s", "every=9s is not a length of time from 10 s to 7 d"),
        ("checkpoint state keep=0", "keep=0 is not a number of checkpoints"),
        ("checkpoint state keep=11", "keep=11 is not a number of checkpoints"),
        ("checkpoint state signal=KILL", "signal=KILL is not a signal"),
        ("checkpoint state signal=A:USR1", "signal=A:USR1 is not a signal"),
        ("checkpoint state within=60s", "within= needs signal= or command="),
        ("checkpoint state command=", "command= is empty"),
        ("checkpoint state command=./save.sh signal=USR1", "signal= and command= are both given"),
        ("checkpoint state command='./save.sh %j'", "%j cannot be used in command="),
        (f"checkpoint state command={'x' * 4097}", "command= is too long"),
        ("checkpoint state signal=USR1 within=2h", "within=2h is not a length of time from 1 s to 1 h"),
    ],
)
def test_what_is_wrong(line: str, says: str) -> None:
    assert wrong(f"#BURST {line}") == says


def test_lines_that_contradict_each_other() -> None:
    assert wrong("#BURST stage_in a/x", "#BURST stage_in b/x") == "line 2 already has an input x"
    assert wrong("#BURST stage_in a/x", "#BURST dataset x") == "line 2 already has an input x"
    assert wrong("#BURST scratch 1G", "#BURST scratch 2G") == "line 2 already requests scratch"
    shared = "line 2 already requests shared scratch"
    assert wrong("#BURST scratch shared", "#BURST scratch shared 2G") == shared
    assert wrong("#BURST stage_out x to y", "#BURST stage_out ./x to y on success") == "this repeats an earlier line"
    assert wrong("#BURST checkpoint a", "#BURST checkpoint b") == "line 2 already names the checkpoint"
    assert wrong("#BURST container a", "#BURST container b") == "line 2 already names the container"
    assert wrong("#BURST stage_in a", "#BURST container b/a") == "line 2 already has an input a"
    assert wrong("#BURST volume a 1G", "#BURST volume b") == "line 2 already names a volume"
    assert wrong("#BURSTING with data") == "missing blank after #BURST"


def test_every_fault_is_told_and_what_is_right_is_kept() -> None:
    found, faults = parse_directives("#BURST stage_in\n#BURST stage_in ok\n#BURST scratch x\n")
    assert [f.line for f in faults] == [1, 3]
    assert str(faults[0]) == (
        "line 1: #BURST stage_in: missing source. Usage: #BURST stage_in SOURCE [as NAME] [read_only|copy]"
    )
    assert [s.name for s in found.stage_in] == ["ok"]


def test_help_is_whole_and_its_examples_are_right() -> None:
    [fault] = parse_directives("#BURST help")[1]
    assert fault.expected == directive_help()
    examples = [line.strip() for line in directive_help().splitlines() if line.startswith("  #BURST")][-4:]
    found = read(*examples)
    assert [s.name for s in found.stage_in] == ["hg38.fa", "runs"]
    assert [s.destination for s in found.stage_out] == ["results/${j}", "s3://lab/job-${j}"]


def test_where_slurm_has_put_its_symbols_in() -> None:
    [one] = parse_directives("#!/bin/sh\n#BURST stage_in 100%.csv\n", symbols_replaced=True)[0].stage_in
    assert one.source == "100%.csv"


@pytest.mark.parametrize(
    ("pattern", "work_dir", "expected"),
    [
        ("a b", "/w", "/w/a b"),
        ("/a", "/w", "/a"),
        ("${HOME}/x", "/w", "/home/ada/x"),
        ("x-${j}", "/w", "/w/x-7"),
        ("x-${a}", "/w", None),
        ("a[*]", "/w*", "/w*/a*"),
        ("a[*]*", "/w*", "/w[*]/a[*]*"),
        ("s3://b/${u}/x", "/w", "s3://b/a[d]a/x"),
        ("out/*.csv", "", "out/*.csv"),
        ("out/[$]x", "", "out/$x"),
    ],
)
def test_resolve(pattern: str, work_dir: str, expected: str | None) -> None:
    assert resolve_pattern(pattern, {"HOME": "/home/ada", "j": "7", "u": "a[d]a"}, work_dir) == expected


@given(st.text(), st.booleans())
def test_parse_never_raises(text: str, replaced: bool) -> None:
    parse_directives(text, symbols_replaced=replaced)
    parse_directives("#BURST " + text, symbols_replaced=replaced)


NASTY = st.text(st.sampled_from("ab /'\"\\$`*?[]!-^~#%{}=\n\t\x00:@.é\udcff\ud800" + "stage_in"), max_size=40)
DIRECTIVE = st.sampled_from(
    ["stage_in", "stage_out", "dataset", "scratch", "checkpoint", "volume", "workdir", "container", "help", ""]
)


@given(DIRECTIVE, NASTY)
def test_nor_on_nasty_lines_and_what_is_right_reads_back(directive: str, text: str) -> None:
    found, _ = parse_directives(f"#BURST {directive} {text}")
    again, faults = parse_directives(format_directives(found))
    assert faults == ()
    assert again == _unnumbered(found, again)


def _unnumbered(found: Directives, like: Directives) -> Directives:
    """The same directives on the lines of the other."""
    return replace(
        found,
        stage_in=tuple(replace(a, line=b.line) for a, b in zip(found.stage_in, like.stage_in, strict=True)),
        stage_out=tuple(replace(a, line=b.line) for a, b in zip(found.stage_out, like.stage_out, strict=True)),
        checkpoint=found.checkpoint and replace(found.checkpoint, line=1),
        volume=found.volume and replace(found.volume, line=1),
    )


names = (
    st.binary(min_size=1, max_size=30)
    .filter(lambda b: b"\0" not in b)
    .map(lambda b: b.decode("utf-8", "surrogateescape"))
)


@given(names)
def test_any_name_can_be_written(name: str) -> None:
    [word] = tokenize(quote_token(name))
    assert word.text == name == canonical(name)
    assert word.pattern == escape_pattern(name)
    assert literal_text(word.pattern) == name
    [again] = tokenize(quote_pattern(escape_pattern(name)))
    assert again.pattern == escape_pattern(name)
    line = f"#BURST stage_in {quote_token('/data/' + name)} as x\n"
    assert parse_directives(line) == (Directives((StageIn(escape_pattern("/data/" + name), "x", R, 1),)), ())


@given(st.text(string.ascii_letters + "*?[]!-. ", max_size=12), st.text(string.ascii_letters + "*?[]!-. ", max_size=12))
def test_an_unquoted_pattern_means_what_fnmatch_means(pattern: str, name: str) -> None:
    words = tokenize(pattern.replace(" ", "\\ "))
    if words:
        assert fnmatch.fnmatchcase(name, words[0].pattern) == fnmatch.fnmatchcase(name, pattern)


def test_the_submit_plugin_warns_of_every_directive() -> None:
    text = share_path("config", "slurm", "job_submit.lua").read_text(encoding="utf-8")
    found = re.search(r'string.gmatch\("([a-z_ ]+)", "%S\+"\)', text)
    assert found is not None
    assert found[1].split() == list(USAGE)
