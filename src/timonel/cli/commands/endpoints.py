"""``timonel endpoints``: simulate the autoscaling of endpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from timonel.cli.groups import Json, StyledCommand, noun

app = noun("Simulate how endpoints scale.")


@app.command(cls=StyledCommand)
def simulate(
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
    from timonel.cli.render import endpoints as render
    from timonel.cli.render.output import console, print_json
    from timonel.endpoints.autoscaling import ScalingPolicy
    from timonel.endpoints.autoscaling.drawing import check_ending, write_figure
    from timonel.endpoints.autoscaling.policy_files import read_policy
    from timonel.endpoints.autoscaling.simulation import ServiceModel
    from timonel.endpoints.autoscaling.simulation import simulate as replay
    from timonel.endpoints.autoscaling.traces import load_trace
    from timonel.units import parse_seconds

    if out is not None:
        check_ending(out)
    found = read_policy(policy) if policy else ScalingPolicy()
    model = ServiceModel(parse_seconds(startup), parse_seconds(service_time), concurrency)
    result = replay(load_trace(trace), found, model, seed=seed)
    if out is not None:
        title = f"{Path(trace).name} with {policy.name if policy else 'the default policy'}"
        write_figure(out, result, title, render.simulation_facts(result))
    if json:
        print_json(render.simulation_json(result))
        return
    console().print(render.simulation_page(result))
    if out is not None:
        typer.echo(f"{out} shows it")
