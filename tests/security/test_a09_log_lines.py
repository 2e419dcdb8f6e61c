"""One user's flood makes a few lines in the log, and says how many were left out."""

from __future__ import annotations

import io

import structlog

from burstd.runtime import logs
from burstd.runtime.logs import MAX_LINES, WINDOW_S, UserRateLimit, set_up


def test_a_flood_of_one_user_is_a_few_lines() -> None:
    out = io.StringIO()
    before = structlog.get_config()
    try:
        set_up(stream=out)
        log = structlog.get_logger("burstd.slurm.hooks.stage_server")
        for n in range(1200):
            log.warning("a hook was not heard", uid=1001, n=n)
            if n < 5:
                log.warning("a hook was not heard", uid=1002)
        for n in range(50):
            log.info("a claim has moved", claim=str(n))
    finally:
        structlog.configure(**before)
    lines = out.getvalue().splitlines()
    assert sum("uid=1001" in line for line in lines) == MAX_LINES
    assert sum("uid=1002" in line for line in lines) == 5
    assert sum("a claim has moved" in line for line in lines) == 50


def test_what_was_left_out_is_told_and_users_are_forgotten() -> None:
    now = 0.0
    sparing = UserRateLimit(lambda: now)
    kept = 0
    for _ in range(100):
        try:
            sparing(None, "", {"event": "x", "uid": 1})
            kept += 1
        except structlog.DropEvent:
            pass
    assert kept == MAX_LINES
    now = WINDOW_S
    assert sparing(None, "", {"event": "x", "uid": 1})["left_out"] == 100 - MAX_LINES
    assert "left_out" not in sparing(None, "", {"event": "x", "uid": 1})
    for uid in range(3 * logs._MAX_KEYS):
        sparing(None, "", {"event": "x", "uid": uid})
    assert len(sparing._counts) <= logs._MAX_KEYS
