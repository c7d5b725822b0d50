"""Charts of an HTML page: histograms as inline SVG, and shares as bars.

Matplotlib takes 60 ms and 11 kB for each chart, and its text shrinks on phones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise

from timonel.data.inspection.distributions import Floats, Numbers, Words, bin_edges
from timonel.data.schema import Split
from timonel.pages import BLUE, ORANGE, RED
from timonel.units import format_bytes

STYLE = f"""
.charts {{ display: grid; gap: 1.5em; grid-template-columns:
  repeat(auto-fill, minmax(min(300px, 100%), 1fr)) }}
figure {{ margin: 0; min-width: 0 }} figcaption {{ font-size: 13px }}
figure svg {{ width: 100%; height: auto; overflow: visible }}
svg text {{ font-size: 11px; fill: #555 }}
figure table {{ font-size: 13px; margin: .3em 0 }}
figure td, figure th {{ padding: .1em .5em .1em 0; font-weight: normal }}
th[scope=row] {{ overflow-wrap: anywhere; min-width: 7em; max-width: 26em }}
.bar {{ display: inline-block; height: .7em; margin-left: .4em }} .share {{ white-space: nowrap }}
.value {{ display: inline-block; min-width: 3em; text-align: right }}
.train {{ background: {BLUE} }} .validation {{ background: {ORANGE} }} .test {{ background: {RED} }}
.key {{ display: inline-block; width: .9em; height: .9em; margin: 0 .3em 0 0 }}
.key:not(:first-child) {{ margin-left: 1em }}
@media (max-width: 600px) {{ td, th {{ padding-right: .6em }} .value {{ min-width: 2.2em }} }}
@media print {{ * {{ print-color-adjust: exact; -webkit-print-color-adjust: exact }} }}
"""
_COLOURS: Mapping[Split, str] = {"train": BLUE, "validation": ORANGE, "test": RED}
_LEFT, _WIDTH, _HEIGHT, _MARGIN = 34, 274, 130, 12
"""Width of the labels of shares; size of the plot; space at the right and the top."""
_WORDS = 8
_BAR = 40
_LONGEST = 80


def legend(splits: Iterable[Split]) -> str:
    """Return the colours of the splits."""
    keys = (f"<span class='key {split}'></span>{split}" for split in splits)
    return f"<p>{''.join(keys)}</p>"


def shortened(text: str, length: int = _LONGEST) -> str:
    """Return a text, or its start and an ellipsis."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def histogram(name: str, parts: Mapping[Split, Numbers], unit: str = "") -> str:
    """Return a figure with the shares of a column's values by split.

    The unit ``bytes`` is shown as kB, MB and so on. One of the splits has values.
    """
    known = {split: part for split, part in parts.items() if part.count}
    edges = bin_edges(list(known.values()))
    counts = {split: part.histogram(edges) for split, part in known.items()}
    shares = {split: counts[split] / known[split].count for split in known}
    top = max(float(share.max()) for share in shares.values())
    lines = "".join(_outline(split, share, top) for split, share in shares.items())
    outside = sum(part.count - int(counts[split].sum()) for split, part in known.items())
    means = (f"{split} {_shown(part, part.moments.mean, unit)}" for split, part in known.items())
    note = "mean: " + ", ".join(means)
    if outside:
        note += f"; not shown: {outside:,} far from the others"
    axes = _share_axis(top) + _value_axis(list(known.values()), edges, unit)
    svg = (
        f'<svg viewBox="0 0 {_LEFT + _WIDTH + _MARGIN} {_HEIGHT + 2 * _MARGIN + 6}" role="img" '
        f'aria-label="{escape(f"Histogram of {name}; {note}")}">'
        f'<g transform="translate({_LEFT} {_MARGIN})">{axes}{lines}</g></svg>'
    )
    title = f"{name} ({unit})" if unit and unit != "bytes" else name
    return _figure(title, svg, note)


def words(name: str, parts: Mapping[Split, Words]) -> str:
    """Return a figure with the shares of a column's most frequent words by split."""
    first, part = next(iter(parts.items()))
    if any(each.counts is None for each in parts.values()):
        return _figure(name, "<p>more than 100,000 different values</p>", "")
    common = sorted(
        {word for each in parts.values() for word, _ in each.common(_WORDS)},
        key=lambda word: (-_share(part, word), word),
    )[:_WORDS]
    rows = {
        word: {
            split: (f"{_share(each, word):.1%}", _share(each, word))
            for split, each in parts.items()
        }
        for word in common
    }
    distinct = len(part.counts or ())
    note = f"the most frequent of {distinct:,} in {first}" if distinct > len(common) else ""
    return _figure(name, _bars("value", rows), note)


def count_rows(counts: Mapping[str, Mapping[Split, int]], totals: Mapping[Split, int]) -> str:
    """Return a table of the number of records by label and split, with bars, and in all."""
    top = max((count for row in counts.values() for count in row.values()), default=0) or 1
    rows = {
        label: {split: (f"{row.get(split, 0):,}", row.get(split, 0) / top) for split in totals}
        for label, row in counts.items()
    }
    sums = {split: (f"{total:,}", 0.0) for split, total in totals.items()}
    return _bars("label", rows, sums)


_Cells = Mapping[Split, tuple[str, float]]
"""By split: a text, and the length of its bar from 0 to 1."""


def _bars(head: str, rows: Mapping[str, _Cells], sums: _Cells | None = None) -> str:
    lines = [(shortened(name), cells) for name, cells in rows.items()]
    lines += [("all", sums)] if sums else []
    body = "".join(
        f"<tr><th scope=row>{escape(name)}</th>"
        + "".join(
            f"<td class=share><span class=value>{text}</span><span class='bar {split}' "
            f"style='width:{_BAR * size:.1f}px'></span></td>"
            for split, (text, size) in cells.items()
        )
        + "</tr>"
        for name, cells in lines
    )
    splits = lines[0][1] if lines else {}
    heads = "".join(f"<th scope=col>{split}</th>" for split in splits)
    return f"<div class=scroll><table><tr><th scope=col>{head}</th>{heads}</tr>{body}</table></div>"


def _figure(name: str, body: str, note: str) -> str:
    return (
        f"<figure><figcaption><b>{escape(name)}</b></figcaption>{body}"
        f"<figcaption>{escape(note)}</figcaption></figure>"
    )


def _outline(split: Split, share: Floats, top: float) -> str:
    places = [index * _WIDTH / len(share) for index in range(len(share) + 1)]
    levels = [_HEIGHT * (1 - float(value) / top) for value in share]
    line = "".join(
        f"L{x:.1f} {level:.1f}L{end:.1f} {level:.1f}"
        for (x, end), level in zip(pairwise(places), levels, strict=True)
    )
    fill = f'fill="{BLUE}" fill-opacity=".25"' if split == "train" else 'fill="none"'
    return (
        f'<path d="M0 {_HEIGHT}{line}L{_WIDTH} {_HEIGHT}" {fill} '
        f'stroke="{_COLOURS[split]}" stroke-width="1.5"/>'
    )


def _share_axis(top: float) -> str:
    """Return lines at round shares, from 0."""
    places = ((tick, _HEIGHT * (1 - tick / top)) for tick in _ticks(0, top, 4))
    return "".join(
        f'<path d="M0 {y:.1f}H{_WIDTH}" stroke="#ddd"/>'
        f'<text x="-4" y="{y + 4:.1f}" text-anchor="end">{100 * tick:.3g}%</text>'
        for tick, y in places
    )


def _value_axis(parts: Sequence[Numbers], edges: Floats, unit: str) -> str:
    """Return marks at round values; of dates, at both ends and in the middle."""
    low, high, part = float(edges[0]), float(edges[-1]), parts[0]
    if part.is_date:
        first = min(each.moments.minimum or low for each in parts)  # cells are rounded down
        ticks = [(max(low, first), "start"), ((low + high) / 2, "middle"), (high, "end")]
    else:
        is_whole = bool((edges % 1 == 0.5).all())  # as bins of whole numbers have
        ticks = [(tick, "middle") for tick in _ticks(low, high, 5, 1 if is_whole else 0)]
    marks = "".join(
        f'<path d="M{x:.1f} {_HEIGHT}v4" stroke="#888"/>'
        f'<text x="{x:.1f}" y="{_HEIGHT + 15}" text-anchor="{anchor}">{text}</text>'
        for x, anchor, text in (
            (_WIDTH * (tick - low) / (high - low), anchor, _shown(part, tick, unit))
            for tick, anchor in ticks
        )
    )
    return f'<path d="M0 {_HEIGHT}H{_WIDTH}" stroke="#888"/>{marks}'


def _ticks(low: float, high: float, count: int, smallest: float = 0) -> Iterator[float]:
    """Yield up to about ``count`` multiples of 1, 2 or 5 times a power of ten."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = max(smallest, power * next(each for each in (1, 2, 5, 10) if power * each >= rough))
    for number in range(math.ceil(low / step), math.floor(high / step) + 1):
        yield number * step


def _shown(part: Numbers, value: float, unit: str) -> str:
    if unit == "bytes":
        return format_bytes(value).replace(".0 ", " ")
    if 1e6 <= abs(value) < 1e12 and not part.is_date:
        return f"{value / 1e6:,.4g}M"
    return part.show(value)


def _share(part: Words, word: str) -> float:
    counts: Mapping[str, int] = part.counts or {}
    return counts.get(word, 0) / part.count if part.count else 0.0
