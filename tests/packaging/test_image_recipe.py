"""config/images: the script is clean, Packer takes the template. tests/e2e/test_aws.py boots what the script makes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "config" / "images"


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_has_nothing_to_say() -> None:
    said = subprocess.run(["shellcheck", str(FOLDER / "node.sh")], capture_output=True, text=True, check=False)
    assert said.stdout == ""


@pytest.mark.parametrize("words", [[], ["disk"]])
def test_the_script_changes_nothing_where_it_is_not_told_what_to_make(words: list[str]) -> None:
    said = subprocess.run(["sh", str(FOLDER / "node.sh"), *words], capture_output=True, text=True, check=False)
    assert (said.returncode, said.stdout, said.stderr) == (2, "", "usage: node.sh machine|container\n")


@pytest.mark.parametrize("words", [["-syntax-only"], ["-only=amazon-ebs.node"]])
@pytest.mark.skipif(shutil.which("packer") is None, reason="packer is not installed")
def test_packer_takes_the_template(words: list[str], tmp_path: Path) -> None:
    """Without plugins.pkr.hcl: Debian's Packer is older than that block. The other builder asks OpenStack at once."""
    for name in ("node.pkr.hcl", "node.sh"):
        shutil.copy(FOLDER / name, tmp_path)
    environment = {**os.environ, "CHECKPOINT_DISABLE": "1", "PACKER_CONFIG_DIR": str(tmp_path)}
    command = ["packer", "validate", *words, "."]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
