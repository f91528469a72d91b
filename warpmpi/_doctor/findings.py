# SPDX-License-Identifier: BSD-3-Clause
"""All findings: from the facts of all ranks, each with one cure.

A new finding is one function, with its place in RULES of its file.
"""

from __future__ import annotations

from . import rules_data, rules_gpus, rules_start
from .finding import LEVELS, Finding
from .job import Job

RULES = rules_start.RULES + rules_gpus.RULES + rules_data.RULES


def find(job: Job) -> list[Finding]:
    """Return all findings, the gravest first."""
    found = [finding for rule in RULES for finding in rule(job)]
    return sorted(found, key=lambda each: -LEVELS.index(each.level))


def status(findings: list[Finding]) -> int:
    """Return the exit status: 0 fine, 1 warnings, 2 broken."""
    return max((LEVELS.index(each.level) for each in findings), default=0)
