"""`gpu-gate config`: every setting in force, where it came from, and what is wrong."""

from __future__ import annotations

import json
import sys
from typing import Any

from .. import config as configuration


def run(config: configuration.Config, as_json: bool, check: bool) -> int:
    """Print the settings, the problems to stderr. Returns 1 with `check` if there is a problem."""
    if as_json:
        print(json.dumps(_report(config), indent=1))
    elif not check:
        section = ""
        for row_section, key, value, origin in configuration.rows(config):
            if row_section != section:
                print(f"{chr(10) if section else ''}[{row_section}]")
                section = row_section
            print(f"{key}={value}".ljust(58) + f" # {origin}")
    for problem in config.problems:
        print(f"{'error' if problem.is_error else 'warning'}: {problem}", file=sys.stderr)
    return 1 if check and config.problems else 0


def _report(config: configuration.Config) -> dict[str, Any]:
    return {
        "version": 1,
        "settings": [
            {"section": section, "key": key, "value": value, "from": origin}
            for section, key, value, origin in configuration.rows(config)
        ],
        "problems": [
            {"where": p.where, "sentence": p.sentence, "error": p.is_error} for p in config.problems
        ],
    }
