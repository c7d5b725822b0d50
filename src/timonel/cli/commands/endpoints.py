"""``timonel endpoints``: show, change and delete endpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from timonel.cli import completion
from timonel.cli.deletion import add_delete
from timonel.cli.groups import Json, StyledCommand, noun
from timonel.cli.settings import GlobalOptions
from timonel.errors import NotFoundError, SpecError

if TYPE_CHECKING:
    from timonel.endpoints import Endpoint
    from timonel.endpoints.folder import Revision

app = noun("List, show, scale, split, roll out, roll back, simulate and delete endpoints.")

EndpointRef = Annotated[
    str,
    typer.Argument(
        help="Name of the endpoint.", metavar="ENDPOINT", autocompletion=completion.endpoints
    ),
]

Wait = Annotated[bool, typer.Option("--wait/--no-wait", help="Wait until the change is in effect.")]


@app.command("list", cls=StyledCommand)
def list_(ctx: typer.Context, json: Json = False) -> None:
    """List the endpoints of the workspace."""
    from timonel.cli.render.endpoints import ENDPOINT
    from timonel.endpoints import list_endpoints

    found = list_endpoints(GlobalOptions.of(ctx).find())
    empty = "No endpoints. Make one with 'timonel deploy MODEL'."
    ENDPOINT.print_list("endpoints", found, empty, json=json)


@app.command(cls=StyledCommand)
def show(ctx: typer.Context, endpoint: EndpointRef, json: Json = False) -> None:
    """Show an endpoint: address, traffic, replicas and revisions."""
    from timonel.cli.render import endpoints as render
    from timonel.cli.render.output import console, print_json

    found = _open(ctx, endpoint)
    if json:
        print_json(render.ENDPOINT.json(found, is_detailed=True))
    else:
        console().print(render.endpoint_page(found))


@app.command(cls=StyledCommand)
def scale(
    ctx: typer.Context,
    endpoint: EndpointRef,
    *,
    least: Annotated[
        int | None, typer.Option("--min", min=0, help="Smallest number of replicas.")
    ] = None,
    most: Annotated[
        int | None, typer.Option("--max", min=1, help="Largest number of replicas.")
    ] = None,
    wait: Wait = True,
    json: Json = False,
) -> None:
    """Change how many replicas an endpoint has at least and at most."""
    if least is None and most is None:
        raise SpecError("nothing to change", hint="give --min or --max")
    found = _open(ctx, endpoint)
    _print_revision(ctx, found, found.scale(least, most), wait=wait, json=json)


@app.command(cls=StyledCommand)
def split(
    ctx: typer.Context,
    endpoint: EndpointRef,
    shares: Annotated[
        list[str] | None,
        typer.Argument(
            help="Percentage of each version. [default: as before]", metavar="VERSION=PERCENT..."
        ),
    ] = None,
    *,
    route: Annotated[
        list[str] | None,
        typer.Option(
            help="Version for requests with the header x-timonel-label: LABEL; repeat it.",
            metavar="LABEL=VERSION",
        ),
    ] = None,
    match: Annotated[
        list[str] | None,
        typer.Option(
            help="Version for requests with this header; repeat it.", metavar="HEADER=VALUE:VERSION"
        ),
    ] = None,
    cookie: Annotated[
        str | None,
        typer.Option(help="Clients keep their version by a cookie of this name.", metavar="NAME"),
    ] = None,
    header: Annotated[
        str | None,
        typer.Option(help="Clients keep their version by this header's value.", metavar="NAME"),
    ] = None,
    shadow: Annotated[
        str | None,
        typer.Option(
            help="Copy requests to a version and discard its responses.",
            metavar="VERSION[=PERCENT]",
        ),
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Remove the rules that are not given here.")
    ] = False,
    wait: Wait = True,
    json: Json = False,
) -> None:
    """Distribute requests over versions, such as 3=90 4=10.

    It applies once all of them are ready.
    """
    from timonel.cli.traffic import percentages, rules

    given = rules(route or (), match or (), cookie, header, shadow)
    if not (shares or given or plain):
        raise SpecError("nothing to change", hint="give percentages such as 3=90 4=10")
    found = _open(ctx, endpoint)
    revision = found.split(percentages(shares) if shares else None, plain=plain, **given)
    _print_revision(ctx, found, revision, wait=wait, json=json)


@app.command(cls=StyledCommand)
def rollback(
    ctx: typer.Context,
    endpoint: EndpointRef,
    *,
    revision: Annotated[
        int | None,
        typer.Option(
            help="Number of the revision. [default: the last one that differs]", metavar="N"
        ),
    ] = None,
    wait: Wait = True,
    json: Json = False,
) -> None:
    """Return to an earlier revision, which gets a new number.

    The address, TLS, keys, tokens and rates stay as they are.
    """
    found = _open(ctx, endpoint)
    _print_revision(ctx, found, found.rollback(revision), wait=wait, json=json)


@app.command(cls=StyledCommand)
def rollout(
    ctx: typer.Context,
    endpoint: EndpointRef,
    *,
    to: Annotated[
        int | None,
        typer.Option(min=1, help="Start a rollout of this version.", metavar="VERSION"),
    ] = None,
    steps: Annotated[
        str, typer.Option(help="Percentages of requests.", metavar="PERCENT,...")
    ] = "5,25,50,100",
    interval: Annotated[str, typer.Option(help="Shortest time of a step.", metavar="TIME")] = "60s",
    guard: Annotated[
        str,
        typer.Option(
            help="Conditions that the version must meet: error_rate, rejection_rate, p50, p90, "
            "p95, p99 and agreement, such as error_rate<1%,p99<1.2x,agreement>98%.",
            metavar="CONDITION,...",
        ),
    ] = "error_rate<1%",
    min_requests: Annotated[
        int, typer.Option(min=1, help="Requests of the version in each step, at least.")
    ] = 100,
    alpha: Annotated[
        float, typer.Option(help="Probability to roll back a version that meets all conditions.")
    ] = 0.05,
    beta: Annotated[
        float, typer.Option(help="Probability to promote one that misses a condition by far.")
    ] = 0.05,
    pause: Annotated[bool, typer.Option("--pause", help="Stay at the current step.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a paused rollout.")] = False,
    abort: Annotated[
        bool, typer.Option("--abort", help="Give all requests to the earlier version.")
    ] = False,
    number: Annotated[
        int | None, typer.Option(min=1, help="Show this rollout. [default: the last]", metavar="N")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="Write a report to a page FILE.html.", metavar="FILE")
    ] = None,
    json: Json = False,
) -> None:
    """Promote a version step by step, or roll it back if it fails.

    Without an option it shows the last rollout.
    """
    from timonel.cli.render import rollouts as render
    from timonel.cli.render.output import console, print_json
    from timonel.endpoints.rollouts.documents import Command
    from timonel.endpoints.rollouts.report import write_report
    from timonel.pages import check_ending

    commands = {Command.PAUSE: pause, Command.RESUME: resume, Command.ABORT: abort}
    given = [command for command, chosen in commands.items() if chosen]
    if len(given) + (to is not None) + (number is not None) > 1:
        raise SpecError("give one of --to, --pause, --resume, --abort and --number")
    if report is not None:
        check_ending(report, "a report")
    found = _open(ctx, endpoint)
    if to is not None:
        documents = found.rollout(
            to, steps=_steps(steps), interval_s=interval, guards=(guard,),
            min_requests=min_requests, alpha=alpha, beta=beta,
        )  # fmt: skip
    elif given:
        documents = found.command_rollout(given[0])
    else:
        documents = found.find_rollout(number)
    routed = found.routed
    percent = {} if routed is None else routed.spec.traffic.percent
    if report is not None:
        write_report(report, documents, found.name)
    if json:
        print_json(render.rollout_json(documents, percent))
        return
    console().print(render.rollout_page(documents, percent))
    if report is not None:
        typer.echo(f"{report} shows it")


@app.command(cls=StyledCommand)
def start(ctx: typer.Context, json: Json = False) -> None:
    """Start all endpoints again, as after a reboot, or apply changed settings of the cluster."""
    from timonel.cli.render.output import print_json
    from timonel.endpoints import list_endpoints
    from timonel.endpoints.handle import start_control

    workspace = GlobalOptions.of(ctx).find()
    start_control(workspace)
    names = [each.name for each in list_endpoints(workspace)]
    if json:
        print_json({"started": names})
    else:
        typer.echo(f"starting {', '.join(names)}" if names else "there are no endpoints")


@app.command(cls=StyledCommand)
def logs(
    ctx: typer.Context,
    endpoint: EndpointRef,
    *,
    replica: Annotated[str | None, typer.Option(help="Only this replica.", metavar="NAME")] = None,
    lines: Annotated[int, typer.Option(min=1, help="Last lines of each.")] = 20,
    json: Json = False,
) -> None:
    """Print what replicas, gateway and control plane logged."""
    from timonel.cli.render.output import print_json

    found = _open(ctx, endpoint)
    sources = found.log_sources()
    chosen = [source for source in sources if replica in (None, source[0])]
    if not chosen:
        known = ", ".join(name for name, _ in sources)
        raise NotFoundError(
            f"{endpoint} has no replica {replica}" if replica else f"{endpoint} has no replica",
            hint=f"there are: {known}" if known else "it is at zero",
        )
    texts = {name: found.log(service, name)[-lines:] for name, service in chosen}
    if json:
        print_json({"logs": texts})
        return
    for name, text in texts.items():
        for line in text:
            typer.echo(f"{name}: {line}")


@app.command(cls=StyledCommand)
def simulate(
    ctx: typer.Context,
    trace: Annotated[
        str, typer.Argument(help="CSV file, or one of step, spike, diurnal and on-off.")
    ],
    *,
    policy: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with a scaling policy, or a manifest of Knative, KServe or an HPA.",
            metavar="FILE",
        ),
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(help="Use the scaling policy of this endpoint.", metavar="ENDPOINT"),
    ] = None,
    startup: Annotated[
        str, typer.Option(help="Time from a replica's start until it is ready.", metavar="TIME")
    ] = "10s",
    service_time: Annotated[
        str, typer.Option(help="Time that a request takes, apart from waiting.", metavar="TIME")
    ] = "100ms",
    concurrency: Annotated[
        float, typer.Option(help="Requests that a replica serves at once; 0 for its target.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the arrivals.")] = 0,
    out: Annotated[
        Path | None,
        typer.Option(help="Draw it to FILE.svg, or to a page FILE.html.", metavar="FILE"),
    ] = None,
    json: Json = False,
) -> None:
    """Replay a trace of load against a scaling policy."""
    from timonel.cli.render import simulations as render
    from timonel.cli.render.output import console, print_json
    from timonel.endpoints.autoscaling import ScalingPolicy
    from timonel.endpoints.autoscaling.drawing import ENDINGS, write_figure
    from timonel.endpoints.autoscaling.policy_files import read_policy
    from timonel.endpoints.autoscaling.simulation import ServiceModel
    from timonel.endpoints.autoscaling.simulation import simulate as replay
    from timonel.endpoints.autoscaling.traces import load_trace
    from timonel.pages import check_ending
    from timonel.units import parse_seconds

    if out is not None:
        check_ending(out, "a figure", ENDINGS)
    if policy and endpoint:
        raise SpecError("give either --policy or --endpoint")
    if endpoint:
        found, source = _open(ctx, endpoint).spec.scaling, f"the policy of {endpoint}"
    elif policy:
        found, source = read_policy(policy), policy.name
    else:
        found, source = ScalingPolicy(), "the default policy"
    model = ServiceModel(parse_seconds(startup), parse_seconds(service_time), concurrency)
    result = replay(load_trace(trace), found, model, seed=seed)
    if out is not None:
        write_figure(
            out, result, f"{Path(trace).name} with {source}", render.simulation_facts(result)
        )
    if json:
        print_json(render.simulation_json(result))
        return
    console().print(render.simulation_page(result))
    if out is not None:
        typer.echo(f"{out} shows it")


def _open(ctx: typer.Context, name: str) -> Endpoint:
    from timonel.endpoints import open_endpoint

    return open_endpoint(GlobalOptions.of(ctx).find(), name)


def _steps(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdecimal() for word in words):
        raise SpecError(f"expected percentages, got {text!r}", hint="write 5,25,50,100, say")
    return tuple(int(word) for word in words)


def _print_revision(
    ctx: typer.Context, endpoint: Endpoint, revision: Revision, *, wait: bool, json: bool
) -> None:
    """Print a change, once it is in effect if ``wait`` is true."""
    from timonel.cli.render import endpoints as render
    from timonel.cli.render.output import print_json

    if wait:
        remarks = GlobalOptions.of(ctx).remarks(stderr=True)
        endpoint.wait(on_change=render.printer_of_messages(remarks))
    if json:
        print_json(render.revision_json(revision))
        return
    effect = "" if wait else "; 'timonel endpoints show' tells when it is in effect"
    typer.echo(f"{endpoint.name} is revision {revision.number}: {revision.cause}{effect}")


add_delete(
    app,
    "endpoint",
    "Delete endpoints and their replicas.",
    "Replicas first answer the requests that they have.",
)
