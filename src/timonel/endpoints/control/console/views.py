"""HTML of the pages of endpoints. Pure; all text is escaped, and credentials are redacted."""

from __future__ import annotations

import datetime as dt
import importlib.resources
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from string import Template
from typing import Final

from timonel._version import __version__
from timonel.endpoints.control.console.history import EndpointPoint
from timonel.endpoints.folder import EndpointStatus, ObservedVersion, Revision
from timonel.endpoints.rollouts.documents import Rollout, RolloutState
from timonel.endpoints.spec import Access, EndpointSpec, Traffic
from timonel.tracking.redaction import redact_text
from timonel.units import format_seconds

_EVENTS: Final = 30
_COLOURS: Final = 5
_DOTS: Final = {"ready": "good", "idle": "none", "deleting": "warn", "starting": "warn"}


@dataclass(frozen=True)
class RolloutView:
    """A rollout with its number."""

    number: int
    rollout: Rollout
    state: RolloutState


@dataclass(frozen=True)
class EndpointView:
    """Documents of an endpoint at one time.

    Attributes:
        latest: Latest revision.
        routed: The revision whose traffic applies; None before the first.
        status: Status that the control plane published last.
        is_deleted: Whether it is being deleted.
        rollouts: All rollouts, oldest first.
        points: History.
    """

    latest: Revision
    routed: Revision | None
    status: EndpointStatus
    is_deleted: bool = False
    rollouts: Sequence[RolloutView] = ()
    points: Sequence[EndpointPoint] = ()

    @property
    def spec(self) -> EndpointSpec:
        """Latest specification."""
        return self.latest.spec

    def state(self, now: float) -> str:
        """Return the state in one word."""
        return "deleting" if self.is_deleted else self.status.state(now)


def without_key_files(text: str, access: Access) -> str:
    """Replace paths of key files by their names, in plain text or HTML."""
    files = [access.api_keys]
    files += [access.tls.cert, access.tls.key] if access.tls else []
    files += [access.jwt.jwks] if access.jwt and not access.jwt.is_remote else []
    for file in filter(None, files):
        for form in (file, escape(file)):
            text = text.replace(form, escape(Path(file).name))
    return text


def list_page(endpoints: Sequence[EndpointView], unreadable: Mapping[str, str], now: float) -> str:
    """Return the page with all endpoints of the workspace.

    Args:
        endpoints: The endpoints that can be read.
        unreadable: Errors of the others, by name.
        now: The time in seconds since the epoch.
    """
    cards = {each.spec.name: _entry(each, now) for each in endpoints}
    cards |= {name: _unreadable(name, why) for name, why in unreadable.items()}
    listed = "".join(card for _, card in sorted(cards.items())) or (
        "<li class=quiet>No endpoints. Make one with <code>timonel deploy MODEL</code>.</li>"
    )
    main = (
        '<div class="heading"><h2>Endpoints</h2></div>'
        f'<ul class="cards" id="endpoints" data-part>{listed}</ul>'
    )
    count = "1 endpoint" if len(cards) == 1 else f"{len(cards)} endpoints"
    return _page("Endpoints", _pill("good", count), main)


def endpoint_page(view: EndpointView, now: float) -> str:
    """Return the page of one endpoint."""
    status, spec = view.status, view.spec
    routed = view.routed or view.latest
    main = _template("endpoint.html").substitute(
        name=_text(spec.name),
        notices=_notices(status, now),
        facts=_facts(view),
        shares=_shares(routed.spec.traffic),
        versions="".join(
            _version(version, each, routed.spec.traffic)
            for version, each in sorted(status.versions.items())
        ),
        rollout=_rollouts(spec.name, view.rollouts),
        events=_events(view.points),
    )
    state = view.state(now)
    page = _page(spec.name, _pill(_DOTS.get(state, "bad"), state.capitalize()), main)
    return without_key_files(page, spec.access)


def message_page(title: str, text: str) -> str:
    """Return a page with one message."""
    main = f'<div id="notices" data-part>{_paragraphs([text])}</div>'
    return _page(title, _pill("bad", title), main)


def _text(text: str) -> str:
    return escape(redact_text(text))


@cache
def _template(name: str) -> Template:
    folder = importlib.resources.files("timonel.endpoints.control.console") / "static"
    return Template((folder / name).read_text())


def _page(title: str, pill: str, main: str) -> str:
    return _template("shell.html").substitute(
        title=_text(title), pill=pill, main=main, release=__version__
    )


def _pill(kind: str, text: str) -> str:
    attributes = f'id="health" class="pill" data-state="{kind}" role="status" data-part'
    return f"<span {attributes}>{_text(text)}</span>"


def _entry(view: EndpointView, now: float) -> str:
    spec, status = view.spec, view.status
    versions = status.versions.values()
    state = view.state(now)
    figures = {
        "Traffic": ", ".join(
            f"{version}: {share} %"
            for version, share in sorted((view.routed or view.latest).spec.traffic.percent.items())
        ),
        "Ready": f"{sum(v.ready for v in versions)} of {sum(v.desired for v in versions)}",
        "Requests/s": _number(sum(v.rate for v in versions)),
        "In flight": _number(sum(v.concurrency for v in versions)),
    }
    message = f'<p class="why">{_text(status.message)}</p>' if status.message else ""
    card = (
        f'<li class="panel card"><h3><span class="dot" data-state="{_DOTS.get(state, "bad")}">'
        f'</span><a href="/endpoints/{spec.name}">{spec.name}</a> '
        f'<span class="quiet">{state}</span></h3>'
        f'<p class="quiet">{_text(spec.model)} at {_text(spec.url)}</p>'
        f"{_figures(figures)}{message}</li>"
    )
    return without_key_files(card, spec.access)


def _unreadable(name: str, why: str) -> str:
    return (
        '<li class="panel card"><h3><span class="dot" data-state="bad"></span>'
        f'{_text(name)} <span class="quiet">unreadable</span></h3>'
        f'<p class="why">{_text(why)}</p></li>'
    )


def _notices(status: EndpointStatus, now: float) -> str:
    found = []
    if status.is_stale(now):
        age = f"since {_time(status.at)}" if status.at else "yet"
        found.append(f"The control plane has not published a status {age}.")
    if status.rejected:
        found.append(f"The gateway does not listen with these settings: {status.rejected}")
    if status.message:
        found.append(status.message)
    return _paragraphs(found)


def _paragraphs(notices: Iterable[str]) -> str:
    return "".join(f'<p class="notice">{_text(text)}</p>' for text in notices)


def _facts(view: EndpointView) -> str:
    spec, latest, routed = view.spec, view.latest, view.status.routed
    scaling = spec.scaling
    facts = {
        "REST": f"{spec.url}/v1/models/{spec.model_name}",
        "gRPC": f"{spec.host}:{spec.port}",
        "Model": spec.model if spec.follow is None else f"{spec.model}@{spec.follow}",
        "Latest revision": f"{latest.number} ({latest.cause}, {_time(latest.created_at)})",
        "Routed revision": str(routed or "none yet"),
        "Replicas": f"{scaling.min_replicas} to {scaling.max_replicas or 'any'}, {scaling.goal}",
    }
    return "".join(f"<dt>{name}</dt><dd>{_text(text)}</dd>" for name, text in facts.items())


def _shares(traffic: Traffic) -> str:
    """Return the traffic split as a bar with a legend."""
    shares = [(version, share) for version, share in sorted(traffic.percent.items()) if share]
    at, bars = 0, ""
    for version, share in shares:
        bars += f'<rect class="{_colour(version)}" x="{at}" width="{share}" height="1"/>'
        at += share
    legend = "".join(
        f'<li><i class="swatch {_colour(version)}"></i>{share} % to version {version}</li>'
        for version, share in shares
    )
    told = ", ".join(f"version {version} {share} %" for version, share in shares)
    rules = "".join(f"<li>{_text(rule)}</li>" for rule in traffic.rules)
    return (
        f'<svg class="split" viewBox="0 0 100 1" preserveAspectRatio="none" role="img" '
        f'aria-label="{told}">{bars}</svg>'
        f'<ul class="rules">{legend}{rules}</ul>'
    )


def _version(version: int, now: ObservedVersion, traffic: Traffic) -> str:
    figures = {
        "Traffic": f"{traffic.percent.get(version, 0)} %",
        "Ready": f"{now.ready} of {now.desired}",
        "Running": str(now.running),
        "Requests/s": _number(now.rate),
        "In flight": _number(now.concurrency),
        "Waiting": str(now.held),
    }
    labels = "".join(
        f' <span class="tag">{_text(label)}</span>'
        for label, number in traffic.labels.items()
        if number == version
    )
    reason = f"<p>Autoscaler: {_text(now.reason)}</p>" if now.reason else ""
    message = f'<p class="why">Last failure: {_text(now.message)}</p>' if now.message else ""
    return (
        f'<li class="panel card"><h3><i class="swatch {_colour(version)}"></i>'
        f"Version {version}{labels}</h3>{_figures(figures)}{reason}{message}</li>"
    )


def _rollouts(endpoint: str, rollouts: Sequence[RolloutView]) -> str:
    if not rollouts:
        return '<p class="quiet">No rollouts.</p>'
    *earlier, last = rollouts
    rollout, state = last.rollout, last.state
    has_ended = state.ended_at is not None
    steps = "".join(
        f"<li{' aria-current=step' if index == state.step and not has_ended else ''}>{step} %</li>"
        for index, step in enumerate(rollout.steps)
    )
    checks = "".join(
        f"<li><b>{_text(each.guard)}</b> {state.verdict(each)}: {_text(each.value)} "
        f"of {each.requests:,} requests, limit {_text(each.limit)}</li>"
        for each in state.checks
    )
    links = [f'<a href="/endpoints/{endpoint}/rollouts/{last.number}">Report</a>']
    links += [
        f'<a href="/endpoints/{endpoint}/rollouts/{each.number}">rollout {each.number}: '
        f"{each.state.phase}</a>"
        for each in reversed(earlier[-4:])
    ]
    return (
        f"<p><b>Rollout {last.number}</b> from version {rollout.base} to {rollout.to}: "
        f"<b>{state.phase}</b>{_ended(state)}</p><p>{_text(state.message or 'It begins.')}</p>"
        f'<ol class="steps" aria-label="Steps">{steps}</ol>'
        f'<p class="quiet">{format_seconds(rollout.interval_s)} per step or longer</p>'
        f'<ul class="rules">{checks}</ul><p class="links">{" ".join(links)}</p>'
    )


def _ended(state: RolloutState) -> str:
    return "" if state.ended_at is None else f" at {_time(state.ended_at)}"


def _events(points: Iterable[EndpointPoint]) -> str:
    found = [(point.at, text) for point in points for text in point.events]
    return (
        "".join(
            f"<li><time>{_time(at, '%H:%M:%S')}</time> {_text(text)}</li>"
            for at, text in reversed(found[-_EVENTS:])
        )
        or '<li class="quiet">Nothing has changed.</li>'
    )


def _figures(figures: Mapping[str, str]) -> str:
    items = "".join(
        f"<div><dt>{name}</dt><dd>{_text(text)}</dd></div>" for name, text in figures.items()
    )
    return f'<dl class="figures">{items}</dl>'


def _colour(version: int) -> str:
    return f"s-version-{version % _COLOURS}"


def _number(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def _time(moment: float, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    return dt.datetime.fromtimestamp(moment, dt.UTC).astimezone().strftime(form)
