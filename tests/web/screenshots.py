"""Makes the pictures of docs/web.md: ``python -m tests.web.screenshots docs/images``."""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

from tests.api.fake_backend import FakeBackend, sample_database

from .served import CHROMIUM, serving
from .site import busy_site

PICTURES = {"web-now.png": ("/", "light"), "web-gpus.png": ("/gpus", "dark")}


def main(folder: Path) -> None:
    """Writes each picture."""
    folder.mkdir(parents=True, exist_ok=True)
    with sample_database() as record, sync_playwright() as playwright:
        backend = FakeBackend(record)
        backend.loop = busy_site(96, 300)
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        with serving(backend) as port:
            for name, (path, scheme) in PICTURES.items():
                page = browser.new_page(
                    base_url=f"http://127.0.0.1:{port}",
                    viewport={"width": 1280, "height": 800},
                    color_scheme="dark" if scheme == "dark" else "light",
                )
                page.goto(path)
                page.screenshot(path=folder / name)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
