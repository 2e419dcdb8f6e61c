"""What is shown of a replay: the JSON, the table, and the page with its plots, which all tell the same."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from html.parser import HTMLParser
from typing import Any

import pytest

from burstd.simulate.report import columns
from burstd.simulate.report.page import render_page
from burstd.simulate.report.report import ChainReport, SimulationReport, build_report, build_timeline, pareto_front
from burstd.simulate.report.result import (
    ChainResult,
    Figures,
    ReplayResult,
    SimulatedJobRun,
    TimelineSample,
    TraceWindow,
)
from burstd.simulate.report.wording import format_amount, format_duration

START = 1_507_420_800.0  # 2017-10-08 00:00 UTC
DAY = 86_400.0
WAITS = [0.0] * 50 + [60.0 * n for n in range(1, 51)]
FIGURES = Figures(
    jobs=100, mean_wait_s=765.0, p50_wait_s=0.0, p95_wait_s=2700.0, max_wait_s=3000.0, bounded_slowdown=1.5,
    cloud_gpu_hours=1000.25, cloud_node_hours=125.0, cloud_busy_gpu_hours=800.0, cost=Decimal("2910.006"),
    currency="EUR", waste=0.2, launches=40, interruptions=0, stockouts=0, cloud_jobs=30, unfinished=0, impossible=0,
    used_site=0.97, decisions=2000, elapsed_s=3.2,
)  # fmt: skip


def result(
    chain: str, waits: Sequence[float] = WAITS, timeline: Sequence[TimelineSample] | None = None, **figures: object
) -> ChainResult:
    if timeline is None:
        timeline = [TimelineSample(START + n * 3600, n % 7, 200 + n % 48, n % 5, n % 4) for n in range(24 * 15)]
    jobs = [
        SimulatedJobRun(str(n), START, START + wait, START + wait + 60, 1, 1, burst=False)
        for n, wait in enumerate(waits)
    ]
    return ChainResult(chain, replace(FIGURES, **figures), tuple(timeline), tuple(jobs))  # type: ignore[arg-type]


def replay(*results: ChainResult, **changed: object) -> ReplayResult:
    made = ReplayResult(
        "philly", "philly.csv.gz (philly)", "31 nodes with 8 GPUs", "one pool", TraceWindow(START, START + 14 * DAY), 1,
        results, ("times are UTC",), 248,
    )  # fmt: skip
    return replace(made, **changed)  # type: ignore[arg-type]


NEVER = result(
    "never", cloud_gpu_hours=0.0, cloud_node_hours=0.0, cost=Decimal(0), waste=0.0, launches=0, cloud_jobs=0,
    mean_wait_s=9000.0,
)  # fmt: skip
IMMEDIATE = result("immediate", cloud_gpu_hours=2000.5, cost=Decimal(5820), mean_wait_s=60.0, p95_wait_s=300.0)
AGED = result("aged:600", cloud_gpu_hours=1500.0, cost=Decimal(4365), mean_wait_s=800.0)
AWARE = result("wait_aware,idle", cost=Decimal("2910.006"), mean_wait_s=180.0)
FOUR = replay(NEVER, IMMEDIATE, AGED, AWARE)


class Reader(HTMLParser):
    """A page as a browser takes it: every element closed, texts and attributes by element."""

    VOID = frozenset({"meta", "wbr"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self.tables: list[list[list[str]]] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in {"td", "th"}:
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts.append((self.open[-1], data))
        if {"td", "th"} & set(self.open):
            self.tables[-1][-1][-1] += data

    def of(self, tag: str) -> list[str]:
        return [text for inside, text in self.texts if inside == tag]

    @property
    def data(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.of("script")[0], parse_constant=pytest.fail)
        return found


def chains(*results: ChainResult) -> dict[str, ChainReport]:
    return {chain.chain: chain for chain in build_report(replay(*results)).chains}


def test_json_keeps_its_keys_and_has_no_number_that_json_lacks() -> None:
    lost = result("wait_aware", [math.inf, 1.0], max_wait_s=math.inf, unfinished=1)
    text = build_report(replay(IMMEDIATE, lost)).json_text()
    found = json.loads(text, parse_constant=pytest.fail)
    assert list(found) == [
        "version", "title", "trace", "site", "site_size", "site_unit", "cloud", "window", "seed", "notes", "chains",
    ]  # fmt: skip
    assert (found["version"], found["window"]["start"]) == (1, "2017-10-08T00:00:00Z")
    chain = found["chains"][1]
    assert set(Figures.__dataclass_fields__) - {"elapsed_s"} < set(chain)
    assert (chain["cost"], chain["max_wait_s"], chain["waits"]["wait_s"][-1]) == ("2910.01", None, None)
    assert SimulationReport.model_validate_json(text).json_text() == text


def test_the_report_is_the_same_whatever_the_real_clock_said() -> None:
    slower = tuple(replace(r, figures=replace(r.figures, elapsed_s=99.0)) for r in FOUR.results)
    assert build_report(replace(FOUR, results=slower)).json_text() == build_report(FOUR).json_text()


def test_baselines_the_front_and_what_is_best() -> None:
    found = {chain.chain: chain for chain in build_report(FOUR).chains}
    assert [chain.baseline for chain in found.values()] == [True, True, True, False]
    assert [chain.pareto for chain in found.values()] == [True, True, False, True]
    assert "mean_wait_s" in found["immediate"].best
    assert {"cost", "cloud_gpu_hours"} <= set(found["wait_aware,idle"].best)
    assert found["never"].best == ()
    against = found["wait_aware,idle"].against_immediate
    assert against is not None
    assert (against.cloud_gpu_hours, against.mean_wait_s, against.p95_wait_s) == (-0.5, 120.0, 2400.0)
    assert found["immediate"].against_immediate is None


@pytest.mark.parametrize(
    ("points", "front"),
    [
        ([(0, 9), (5, 5), (9, 0)], [True, True, True]),
        ([(5, 5), (5, 6), (6, 5)], [True, False, False]),
        ([(5, 5), (5, 5)], [True, True]),
        ([(5, math.inf), (9, 1)], [False, True]),
    ],
    ids=["all", "as-good-in-one", "equal", "never-done"],
)
def test_pareto(points: list[tuple[float, float]], front: list[bool]) -> None:
    assert pareto_front(points) == front


def test_waits_are_those_of_the_jobs() -> None:
    waits = chains(result("x"))["x"].waits
    at = dict(zip(waits.share, waits.wait_s, strict=True))
    assert (len(at), at[0.0], at[0.5], at[0.505], at[0.95], at[1.0]) == (201, 0.0, 0.0, 60.0, 2700.0, 3000.0)


def test_timelines_are_thinned_and_keep_their_peaks() -> None:
    peak = 7777
    samples = [TimelineSample(float(n), 0, 0, peak if n == 5003 else 1, 0) for n in range(10_000)]
    thin = build_timeline(samples)
    assert len(thin.time) <= 240
    assert max(thin.cloud_nodes) == peak
    assert thin.time[thin.cloud_nodes.index(peak)] == pytest.approx(5003, abs=42)


def test_the_page_loads_nothing_and_runs_its_own_script_only() -> None:
    text = render_page(build_report(FOUR))
    read = Reader(text)
    assert "://" not in text
    elements = {tag for tag, _ in read.seen}
    assert not {"link", "img", "iframe", "object", "embed", "base", "form", "use", "image"} & elements
    names = {name for _, attributes in read.seen for name in attributes}
    assert not [name for name in names if name.startswith(("on", "src", "href", "xlink", "style"))]
    (style,) = read.of("style")
    assert not re.search(r"@import|url\(", style.lower())
    _, *scripts = read.of("script")
    assert len(scripts) == 2
    assert "Permission is hereby granted" in scripts[0]
    hashes = [base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for t in (*scripts, style)]
    policy = [a["content"] for t, a in read.seen if t == "meta" and a.get("http-equiv") == "Content-Security-Policy"]
    assert policy == ["default-src 'none'; script-src 'sha256-{}' 'sha256-{}'; style-src 'sha256-{}'".format(*hashes)]


def test_figures_of_the_page_are_those_of_the_json() -> None:
    read = Reader(render_page(build_report(FOUR)))
    found = json.loads(build_report(FOUR).json_text())["chains"]
    head, *rows = read.tables[0]
    by_head = [dict(zip(head, row, strict=True)) for row in rows]
    assert [row["chain"] for row in by_head] == [chain["chain"] for chain in found]
    for row, chain in zip(by_head, found, strict=True):
        assert row["mean wait (min)"] == f"{chain['mean_wait_s'] / 60:.1f}".removesuffix(
            ".0" if chain["mean_wait_s"] >= 6000 else ""
        )
        assert row["cloud GPU-h"].replace(",", "") == f"{chain['cloud_gpu_hours']:.0f}"
        assert row["cost (EUR)"].replace(",", "") == chain["cost"]
        assert row["slowdown"] == f"{chain['bounded_slowdown']:.2f}"
    assert by_head[3]["GPU-hours to immediate"] == "\N{MINUS SIGN}50 %"
    assert (
        "wait_aware,idle: 50 % fewer cloud GPU-hours than immediate, mean wait 2.0 min longer; "
        "p95 45.0 min, that of immediate 5.0 min"
    ) in read.of("li")


def test_charts_draw_the_numbers_of_the_json() -> None:
    read = Reader(render_page(build_report(FOUR)))
    found = json.loads(build_report(FOUR).json_text())["chains"]
    assert [chain["name"] for chain in read.data["chains"]] == [chain["chain"] for chain in found]
    for drawn, chain in zip(read.data["chains"], found, strict=True):
        assert (drawn["baseline"], drawn["course"], drawn["wait_s"]) == (
            chain["baseline"], chain["course"], chain["waits"]["wait_s"],
        )  # fmt: skip
        assert read.data["shares"] == chain["waits"]["share"]
    plots = [attributes for tag, attributes in read.seen if tag == "div" and attributes.get("class") == "plot"]
    assert [plot["data-kind"] for plot in plots] == ["scatter"] * 4 + ["timeline"] * 12 + ["waits"]
    assert all(plot["aria-label"] for plot in plots)
    mean_gpu, _, mean_cost, _ = read.data["scatters"]
    assert (mean_gpu["wait"], mean_gpu["against"], mean_cost["against"]) == (
        "mean wait (min)", "cloud GPU-hours", "cost of the cloud (EUR)",
    )  # fmt: skip
    assert [point["x"] for point in mean_gpu["points"]] == [chain["cloud_gpu_hours"] for chain in found]
    assert [point["x"] for point in mean_cost["points"]] == [float(chain["cost"]) for chain in found]
    assert [point["y"] * 60 for point in mean_gpu["points"]] == pytest.approx([180, 60, 180, 180])
    assert [point["front"] for point in mean_gpu["points"]] == [True, True, False, True]
    assert mean_gpu["points"][0]["far"] == ": 2.5 h \N{UPWARDS ARROW}"
    assert mean_gpu["points"][3]["tip"] == "wait_aware,idle: mean wait 3.0 min, 1,000 cloud GPU-hours"


def test_texts_from_outside_stay_texts() -> None:
    evil = '<script>alert("x")</script>&amp;\x1b[31m'
    bad = replay(result(evil), IMMEDIATE, title=evil, trace=evil, site=evil, cloud=evil, notes=(evil,), site_unit=evil)
    text = render_page(build_report(bad))
    read = Reader(text)
    assert [tag for tag, _ in read.seen].count("script") == 3
    assert evil not in text
    assert "\x1b" not in text
    assert read.data["chains"][0]["name"] == evil
    shown = evil.replace("\x1b", "\N{REPLACEMENT CHARACTER}")
    assert shown in read.of("h1")
    assert shown in read.of("li")
    assert any(shown in row[0] for row in read.tables[0])


def test_ten_chains_make_a_page_that_can_be_sent() -> None:
    samples = [TimelineSample(START + n * 60, n * 7 % 997, n * 5 % 248, n * 3 % 101, n * 3 % 89) for n in range(20_000)]
    ten = [
        result(f"chain_{n},wait_aware(value={n}),idle,throttle", timeline=samples, mean_wait_s=60.0 * n + 1)
        for n in range(10)
    ]
    assert len(render_page(build_report(replay(*ten))).encode()) < 1_000_000


@pytest.mark.parametrize(
    "results",
    [
        (),
        (result("x", [], []),),
        (result("x", [0.0], [TimelineSample(START, 0, 0, 0, 0)], mean_wait_s=0.0, max_wait_s=0.0, p95_wait_s=0.0),),
        (
            result(
                "x",
                [math.inf],
                mean_wait_s=math.inf,
                p50_wait_s=math.inf,
                p95_wait_s=math.inf,
                bounded_slowdown=math.inf,
            ),
        ),
        (result("x", cloud_gpu_hours=0.0, cost=Decimal(0)), result("immediate", cloud_gpu_hours=0.0, cost=Decimal(0))),
    ],
    ids=["none", "no-jobs", "nobody-waited", "nothing-started", "without-gpus-and-prices"],
)
def test_little_to_show(results: tuple[ChainResult, ...]) -> None:
    made = build_report(replay(*results))
    read = Reader(render_page(made))
    assert [row[0] for row in read.tables[0][1:]] == [r.chain for r in results]
    assert len(list(columns.table_rows(made))) == len(results)


def test_without_gpus_nodes_count() -> None:
    made = build_report(
        replay(result("x", cloud_gpu_hours=0.0), result("immediate", cloud_gpu_hours=0.0, cloud_node_hours=500.0))
    )
    assert "cloud node-h>" in columns.table_heads(made)
    assert "cloud GPU-h>" not in columns.table_heads(made)
    assert made.chains[0].against_immediate is not None
    assert made.chains[0].against_immediate.cloud_gpu_hours == -0.75
    assert next(columns.summary_sentences(made)).startswith("x: 75 % fewer cloud node-hours than immediate")


def test_the_table_of_a_terminal() -> None:
    made = build_report(FOUR)
    assert columns.table_heads(made)[:3] == ("chain", "mean wait (min)>", "p50 (s)>")
    rows = [dict(zip(columns.table_heads(made), row, strict=True)) for row in columns.table_rows(made)]
    assert [row["mean wait (min)>"] for row in rows] == ["150 ", "1.0*", "13.3 ", "3.0 "]
    assert [row["cost (EUR)>"] for row in rows] == ["0.00 ", "5,820.00 ", "4,365.00 ", "2,910.01*"]


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (format_duration(0.0), "0 s"), (format_duration(64.0), "64 s"), (format_duration(214.0), "3.6 min"),
        (format_duration(11_220.0), "3.1 h"),
        (format_duration(2_600_000.0), "30.1 d"), (format_duration(None), "never"),
        (format_amount(0.0), "0"), (format_amount(0.424), "0.42"),
        (format_amount(12.34), "12.3"), (format_amount(27_314.6), "27,315"),
    ],
    ids=["zero", "seconds", "minutes", "hours", "days", "never", "nothing", "small", "middle", "large"],
)  # fmt: skip
def test_numbers_for_people(shown: str, expected: str) -> None:
    assert shown == expected
