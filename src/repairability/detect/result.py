"""Transition: what a detector found, as a table, as JSON and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from repairability._html import lines
from repairability.tables import Table, Value, percent
from repairability.transition import Interval, inside


@dataclass(frozen=True, eq=False)
class Transition(Value):
    """What a detector found: the core where the rule matters most, the broad band, and the whole curve.

    `null` says how the same detector fares without the information: the median share of the core that it also names on
    curves shuffled among layers (agreement: a bound on it), and on a network with random weights. From one half on,
    `informative` is False.
    """

    method: str
    sparsities: tuple[float, ...]
    series: Mapping[str, Sequence[float | None]]
    core: Interval | None
    broad: Interval | None
    unreachable: Mapping[str, Sequence[float]] = field(default_factory=dict)  # rule -> sparsities
    null: Mapping[str, float] = field(default_factory=dict)
    collapse: float | None = None  # agreement: the first point where it is no better than chance

    @property
    def rules(self) -> list[str]:
        """Of an agreement: the rules that were compared."""
        return [name for name in self.series if f"KL {name}" in self.series]

    @property
    def informative(self) -> bool:
        return self.core is not None and all(share < 0.5 for share in self.null.values())

    @property
    def advice(self) -> str:
        """What it means for this network, in words, from the scores alone."""
        return _cts_advice(self) if self.method == "cts" else _agreement_advice(self)

    def table(self) -> Table:
        regions = dict.fromkeys(inside(self.broad, self.sparsities), "band")
        regions |= dict.fromkeys(inside(self.core, self.sparsities), "core")
        rows = [
            (percent(s), *("" if x is None else f"{x:.4f}" for x in scores), regions.get(s, ""))
            for s, *scores in zip(self.sparsities, *self.series.values(), strict=True)
        ]
        return Table(("sparsity", *self.series, "region"), rows, caption=self.advice)

    def charts(self) -> list[str]:
        plotted = self.for_report()
        bands = {"broad band": self.broad, "core": self.core}
        shaded = {name: bounds for name, bounds in bands.items() if bounds is not None}
        where = ", ".join(f"{name} {_words(bounds)}" for name, bounds in reversed(shaded.items()))
        words = f"Method {self.method}: {where or 'no transition found'}."
        return [lines(self.sparsities, plotted["series"], "Where the network gives way", words, shaded=shaded)]

    def to_dict(self) -> dict[str, Any]:
        plain = {name: list(x) if isinstance(x, tuple) else x for name, x in asdict(self).items()}
        return {**plain, "informative": self.informative, "advice": self.advice}

    def for_report(self) -> dict[str, Any]:
        """What the report plots: series of one scale. Agreement: each rule's, and chance. CTS: T, and G and the
        smoothed score as shares of their largest value.
        """
        if self.method == "agreement":
            series = {name: self.series[name] for name in [*self.rules, "chance"]}
        else:
            series = {"T": self.series["T"]}
            for name in ("G", "smoothed"):
                most = max((abs(x) for x in self.series[name] if x is not None), default=0.0) or 1.0
                series[f"{name} / {most:.3g}"] = [None if x is None else x / most for x in self.series[name]]
        return {**self.to_dict(), "series": {name: list(values) for name, values in series.items()}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Transition:
        known = {part.name: data[part.name] for part in fields(cls)}
        tuples = {name: tuple(known[name]) for name in ("sparsities", "core", "broad") if known[name] is not None}
        return cls(**{**known, **tuples})


def _words(interval: Interval) -> str:
    low, high = interval
    return f"at {100 * low:g} %" if low == high else f"between {100 * low:g} and {100 * high:g} %"


def _null_words(transition: Transition) -> str:
    if transition.core is None or transition.informative:
        return ""
    which = " and ".join(name for name, share in transition.null.items() if share >= 0.5)
    return f" But the detector names the same core without the information ({which}): here it carries none."


def _cts_advice(transition: Transition) -> str:
    if transition.core is None:
        return "No transition detected: the score does not rise above its background anywhere in the sweep."
    band = f" It is elevated {_words(transition.broad)}." if transition.broad else " No broad band was detected."
    return (
        "By the single-layer score, the choice between rr and the reference should matter most "
        f"{_words(transition.core)}.{band}{_null_words(transition)}"
    )


def _agreement_advice(transition: Transition) -> str:
    points = transition.sparsities
    if transition.broad is None:
        best = _best_rule(transition, len(points) - 1)
        return f"No transition up to {100 * points[-1]:g} %: the best rule ({best}) loses little."
    before = [s for s in points if s < transition.broad[0]]
    if not before:
        parts = ["recovery is lost from the first point on"]
    elif any(transition.series["beyond noise"][: len(before)]):
        best = _best_rule(transition, len(before) - 1)
        parts = [f"up to {100 * before[-1]:g} % the best rule ({best}) loses little, others more"]
    else:
        parts = [f"up to {100 * before[-1]:g} % any rule will do"]
    if transition.core is not None:
        parts.append(f"{_words(transition.core)} the rule matters most")
    else:
        parts.append("inside the transition the rules do not differ beyond noise")
    if transition.collapse is None:
        parts.append(f"at {100 * points[-1]:g} % something is still left")
    else:
        parts.append(f"from {100 * transition.collapse:g} % on no allocation helps")
    text = "; ".join(parts)
    return text[0].upper() + text[1:] + "." + _null_words(transition)


def _best_rule(transition: Transition, i: int) -> str:
    """The rule that agrees most at a point."""
    return max(transition.rules, key=lambda rule: float(transition.series[rule][i] or 0.0))
