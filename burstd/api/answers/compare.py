"""Jobs on the site's own nodes beside clouds: ``burstctl compare``."""

from __future__ import annotations

from decimal import Decimal

from burstd.api.answers.base import AnswerView, Money, OptionalTime, Time


class BasisView(AnswerView):
    """On what a figure rests: for so many jobs it is measured, estimated or not known."""

    measured: int
    like: int
    """Estimated by the mean of like jobs (same user, name, nodes, CPUs and GPUs) that ran there, ..."""
    like_jobs: int
    """... of which there are so many."""
    others: int
    """Estimated by other jobs, ..."""
    other_jobs: int
    """... so many; of ``run`` by so many kinds of like jobs that ran at both places."""
    assumed: int
    """Taken to run as long as at the other place: nothing tells of the speed."""
    unknown: int
    reason: str
    """Why it is not known; empty: it is."""


class TimeFigureView(AnswerView):
    """A length of time, summed over the jobs of which it is known."""

    seconds: float | None
    """None: it is known of none."""
    basis: BasisView


class CostFigureView(AnswerView):
    """A cost, summed over the jobs of which it is known."""

    costs: list[Money] | None
    """By currency. None: it is known of none."""
    basis: BasisView


class SideView(AnswerView):
    """The jobs at one place."""

    wait: TimeFigureView
    """From when they were eligible to their start."""
    run: TimeFigureView
    completion: TimeFigureView
    """From submission to the end, and until output is at home."""


class HereView(SideView):
    """On nodes of the site."""

    used: CostFigureView
    """At the price of an hour of use, at the utilisation of ``groups``."""
    marginal: CostFigureView
    """At what an hour of use adds."""


class ThereView(SideView):
    """On machines of clouds."""

    charged: CostFigureView
    """As on the bill."""


class SiteGroupUseView(AnswerView):
    """How much a group of nodes of the site was used."""

    group: str
    nodes: int
    since: Time
    """From then to ``CompareView.until``: the beginning of its time, or of the first day with use."""
    utilisation: Decimal | None
    """The part of the hours of its nodes. None: no use is on record, or Slurm shows no node of it."""


class CompareView(AnswerView):
    """Jobs that ended in a time, here and there."""

    now: Time
    since: Time
    until: Time
    told_since: Time
    """Like jobs and others are those that ended from then on."""
    first_run: OptionalTime
    """When the first run ended that is on record."""
    job: str
    """Which jobs these are; empty: all."""
    name: str
    """Of the job."""
    user: str
    account: str
    jobs: int
    """How many."""
    here: HereView
    there: ThereView
    groups: list[SiteGroupUseView]
    break_even: Decimal | None
    """The utilisation at which an hour of use of own nodes costs for this work what was charged there."""
    break_even_reason: str
    """Why there is none."""
    limits: list[str]
    """What the figures do not tell, in sentences."""
