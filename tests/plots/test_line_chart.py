"""Charts of lines: ticks, gaps, labels that do not overlap, text that is escaped."""

from __future__ import annotations

import re
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from burstd.plots.files import NoPngError, write_png, write_svg
from burstd.plots.line_chart import Line, LineChart, line_chart_svg, spread

SVG = "{http://www.w3.org/2000/svg}"


def drawn(*lines: Line) -> ET.Element:
    return ET.fromstring(line_chart_svg(LineChart("Cost <of> 14 days", "GPUs added", "cost (EUR)", lines)))  # noqa: S314


def texts(chart: ET.Element) -> list[str]:
    return [str(text.text) for text in chart.iter(f"{SVG}text")]


def test_ticks_are_round_and_at_the_points() -> None:
    chart = drawn(Line("bought", [(0, 0.0), (8, 1700.0), (32, 6300.0)]))
    assert texts(chart) == [
        "Cost <of> 14 days", "cost (EUR)", "GPUs added", "0", "2,000", "4,000", "6,000", "8,000", "0", "8", "32",
        "bought",
    ]  # fmt: skip


def test_where_there_is_no_value_the_line_has_a_gap() -> None:
    chart = drawn(Line("a", [(0, 1.0), (8, None), (16, 2.0), (24, 3.0)]), Line("never", [(0, None)]))
    assert [len(line.attrib["points"].split()) for line in chart.iter(f"{SVG}polyline")] == [1, 2]
    assert len([*chart.iter(f"{SVG}circle")]) == 3
    assert "never" not in texts(chart)


def test_all_at_nought_and_nothing_at_all_can_be_drawn() -> None:
    assert "1" in texts(drawn(Line("a", [(0, 0.0)])))
    assert texts(drawn())[:3] == ["Cost <of> 14 days", "cost (EUR)", "GPUs added"]


def test_points_close_together_have_fewer_ticks() -> None:
    shown = texts(drawn(Line("a", [(n, 1.0) for n in (0, 1, 2, 1000)])))
    assert "1,000" in shown
    assert "1" not in shown[8:]


def test_labels_of_lines_that_end_together_stand_apart_in_the_picture() -> None:
    chart = drawn(*(Line(f"line {n}", [(0, 5.0), (8, 0.0)]) for n in range(9)))
    places = [(float(t.attrib["y"]), float(t.attrib["x"])) for t in chart.iter(f"{SVG}text") if "line" in str(t.text)]
    assert len(places) == 9
    assert all(later - earlier >= 18.9 for (earlier, _), (later, _) in pairwise(sorted(places)))
    assert 0 < min(places)[0] < max(places)[0] < 540
    assert max(x for _, x in places) < 900


@given(st.lists(st.floats(0, 400), max_size=20))
def test_places_are_apart_and_stay_where_there_is_room(wanted: list[float]) -> None:
    found = spread(sorted(wanted), 19, 400)
    assert all(later - earlier >= 18.99 for earlier, later in pairwise(found))
    assert not found or found[-1] <= 400
    if all(later - earlier >= 19 for earlier, later in pairwise(sorted(wanted))):
        assert found == sorted(wanted)


def test_files_of_a_folder_that_is_made(tmp_path: Path) -> None:
    (made,) = write_svg(tmp_path / "talk" / "plots", {"cost": line_chart_svg(LineChart("t", "x", "y", ()))})
    assert made == tmp_path / "talk" / "plots" / "cost.svg"
    assert re.match(r"<svg .*</svg>\n\Z", made.read_text(encoding="utf-8"), re.DOTALL)
    if find_spec("cairosvg") is not None:
        (png,) = write_png([made])
        assert png.read_bytes().startswith(b"\x89PNG")
    else:
        with pytest.raises(NoPngError, match=r"PNG needs the extra plots \(pip install 'burstd\[plots\]'\)"):
            write_png([made])
