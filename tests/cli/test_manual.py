"""The man pages: groff takes them without a word, and every command is in them."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from burstd.cli.main import COMMANDS
from burstd.cli.manual import burstctl_page, settings_page

_GROFF = ["groff", "-man", "-ww", "-rCHECKSTYLE=3", "-Tutf8", "-Kutf8", "-P-cbou"]


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
@pytest.mark.parametrize("page", [burstctl_page, settings_page])
def test_groff_has_nothing_to_say(page: object) -> None:
    assert callable(page)
    done = subprocess.run(_GROFF, input=page(), capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_every_command_is_in_it_with_its_options() -> None:
    page = burstctl_page()
    for name in COMMANDS:
        assert f"\n.SS {name.replace('-', chr(92) + '-')}\n" in page
    at = page.index("\n.SS node drain\n")
    assert ".B \\-r, \\-\\-reason" in page[at : page.index("\n.SS", at + 1)]


def test_the_settings_are_shown_as_they_are() -> None:
    page = settings_page()
    assert "\ncluster = \\(dqmysite\\(dq\n" in page
    assert "\n#retention_days = 400\n" in page
