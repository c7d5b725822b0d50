"""Charts of an HTML page: histograms as inline SVG, and shares as bars."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from itertools import pairwise

from timonel.data.inspection.distributions import Numbers, Words, bin_edges
from timonel.data.schema import Split
from timonel.pages import BLUE, ORANGE, RED

STYLE = f"""
.charts {{ display: grid; gap: 1.5em; grid-template-columns:
  repeat(auto-fill, minmax(min(300px, 100%), 1fr)) }}
figure {{ margin: 0; min-width: 0 }} figcaption {{ font-size: 13px }}
figure svg {{ width: 100%; height: auto }} figure table {{ font-size: 13px; margin: .3em 0 }}
figure td, figure th {{ padding: .1em .5em .1em 0; font-weight: normal }}
figure th {{ overflow-wrap: anywhere; min-width: 4em }}
.bar {{ display: inline-block; height: .7em; margin-left: .5em }} td {{ white-space: nowrap }}
.train {{ background: {BLUE} }} .validation {{ background: {ORANGE} }} .test {{ background: {RED} }}
.key {{ display: inline-block; width: .9em; height: .9em; margin: 0 .3em 0 1em }}
@media print {{ * {{ print-color-adjust: exact; -webkit-print-color-adjust: exact }} }}
"""
_COLOURS: Mapping[Split, str] = {"train": BLUE, "validation": ORANGE, "test": RED}
_WIDTH, _HEIGHT, _FOOT = 320, 130, 18
_WORDS = 8
_BAR = 40


def legend(splits: Iterable[Split]) -> str:
    """Return the colours of the splits."""
    keys = (f"<span class='key {split}'></span>{split}" for split in splits)
    return f"<p>{''.join(keys)}</p>"


def histogram(name: str, parts: Mapping[Split, Numbers]) -> str:
    """Return a figure with the shares of a column's values by split."""
    known = {split: part for split, part in parts.items() if part.count}
    if not known:
        return _figure(name, "<p>no values</p>", "")
    edges = bin_edges(list(known.values()))
    counts = {split: part.histogram(edges) for split, part in known.items()}
    shares = {split: counts[split] / known[split].count for split in known}
    top = max(float(share.max()) for share in shares.values()) or 1.0
    outlines = []
    for split, share in shares.items():
        places = [index * _WIDTH / len(share) for index in range(len(share) + 1)]
        levels = [_HEIGHT * (1 - float(value) / top) for value in share]
        line = "".join(
            f"L{x:.1f} {level:.1f}L{end:.1f} {level:.1f}"
            for (x, end), level in zip(pairwise(places), levels, strict=True)
        )
        fill = f'fill="{BLUE}" fill-opacity=".25"' if split == "train" else 'fill="none"'
        outlines.append(
            f'<path d="M0 {_HEIGHT}{line}L{_WIDTH} {_HEIGHT}" {fill} '
            f'stroke="{_COLOURS[split]}" stroke-width="1.5"/>'
        )
    outside = sum(part.count - int(counts[split].sum()) for split, part in known.items())
    means = ", ".join(f"{split} {part.show(part.moments.mean)}" for split, part in known.items())
    note = f"mean: {means}" + (f"; values outside of the chart: {outside:,}" if outside else "")
    first = next(iter(known.values()))
    low, high = float(edges[0]), float(edges[-1])
    if low % 1 == 0.5:  # bins of whole numbers
        low, high = low + 0.5, high - 0.5
    text = f'<text y="{_HEIGHT + _FOOT - 3}" font-size="12"'
    svg = (
        f'<svg viewBox="0 -2 {_WIDTH} {_HEIGHT + _FOOT}" role="img" '
        f'aria-label="{escape(f"Histogram of {name}; {note}")}">{"".join(outlines)}'
        f'<path d="M0 {_HEIGHT}H{_WIDTH}" stroke="#888"/>{text} x="0">{first.show(low)}</text>'
        f'{text} x="{_WIDTH}" text-anchor="end">{first.show(high)}</text></svg>'
    )
    return _figure(name, svg, note)


def words(name: str, parts: Mapping[Split, Words]) -> str:
    """Return a figure with the shares of a column's most frequent words by split."""
    first = next(iter(parts.values()), None)
    if first is None or any(part.counts is None for part in parts.values()):
        return _figure(name, "<p>more than 100,000 different words</p>", "")
    common = sorted(
        {word for part in parts.values() for word, _ in part.common(_WORDS)},
        key=lambda word: (-_share(first, word), word),
    )[:_WORDS]
    rows = "".join(
        f"<tr><th scope=row>{escape(word[:60])}</th>"
        f"{''.join(_bar(split, _share(part, word)) for split, part in parts.items())}</tr>"
        for word in common
    )
    heads = "".join(f"<th scope=col>{split}</th>" for split in parts)
    distinct = ", ".join(f"{split} {len(part.counts or ()):,}" for split, part in parts.items())
    body = f"<div class=scroll><table><tr><th scope=col>word</th>{heads}</tr>{rows}</table></div>"
    return _figure(name, body, f"different words: {distinct}")


def count_rows(counts: Mapping[str, Mapping[Split, int]], totals: Mapping[Split, int]) -> str:
    """Return a table of the number of records by label and split, with bars, and in all."""
    top = max((count for row in counts.values() for count in row.values()), default=0) or 1
    heads = "".join(f"<th scope=col>{split}</th>" for split in totals)
    rows = [
        f"<tr><th scope=row>{escape(label)}</th>"
        + "".join(
            f"<td>{row.get(split, 0):,}<span class='bar {split}' "
            f"style='width:{_BAR * row.get(split, 0) / top:.1f}px'></span></td>"
            for split in totals
        )
        + "</tr>"
        for label, row in counts.items()
    ]
    sums = "".join(f"<td>{total:,}</td>" for total in totals.values())
    return (
        f"<div class=scroll><table><tr><th scope=col>label</th>{heads}</tr>{''.join(rows)}"
        f"<tr><th scope=row>all</th>{sums}</tr></table></div>"
    )


def _figure(name: str, body: str, note: str) -> str:
    return (
        f"<figure><figcaption><b>{escape(name)}</b></figcaption>{body}"
        f"<figcaption>{escape(note)}</figcaption></figure>"
    )


def _bar(split: Split, share: float) -> str:
    style = f"style='width:{_BAR * share:.1f}px'"
    return f"<td>{share:.1%}<span class='bar {split}' {style}></span></td>"


def _share(part: Words, word: str) -> float:
    counts: Mapping[str, int] = part.counts or {}
    return counts.get(word, 0) / part.count if part.count else 0.0
