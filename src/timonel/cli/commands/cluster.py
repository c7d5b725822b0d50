"""``timonel cluster``: check a Kubernetes cluster, print rights and node pools."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from timonel.cli.groups import Json, StyledCommand, noun
from timonel.cli.settings import GlobalOptions
from timonel.errors import SpecError

if TYPE_CHECKING:
    from timonel.checks import Check
    from timonel.engines.kubernetes.node_pools import Pool

app = noun("Check a Kubernetes cluster, and prepare rights and nodes for jobs.")


class Provider(StrEnum):
    """Providers of clusters."""

    GKE = "gke"
    EKS = "eks"
    AKS = "aks"


@app.command(cls=StyledCommand)
def check(
    ctx: typer.Context,
    *,
    run: Annotated[
        bool,
        typer.Option(
            "--run", help="Also run a job: it tries image, DNS and bucket or claim from inside."
        ),
    ] = False,
    timeout: Annotated[float, typer.Option(help="Maximum seconds for that job.", min=1)] = 300.0,
    plain_http: Annotated[
        bool, typer.Option("--plain-http", help="Use the image's registry without TLS.")
    ] = False,
    json: Json = False,
) -> None:
    """Check the cluster, rights, image and storage that jobs need.

    Changes nothing in the cluster without --run. Exits with code 1 if something will not work.
    """
    from timonel.checks import Verdict
    from timonel.cli.doctor.check import as_json, check_lines, summary
    from timonel.cli.render.output import console, print_json
    from timonel.engines.kubernetes.checks import examine, run_job
    from timonel.storage.workspace import ENVIRONMENT_VARIABLE

    options = GlobalOptions.of(ctx)
    workspace = options.workspace or os.environ.get(ENVIRONMENT_VARIABLE)
    checks: list[Check] = []
    out = console(quiet=json)

    def show(check: Check) -> None:
        if not checks or checks[-1].area != check.area:
            out.print(check.area, style="bold")
        out.print(check_lines(check), soft_wrap=True)
        checks.append(check)

    for each in examine(workspace, os.environ, plain_http=plain_http or None):
        show(each)
    if run and not any(check.verdict is Verdict.FAIL for check in checks):
        show(run_job(options.find(create=True), timeout))
    if json:
        print_json(as_json(checks))
    out.print(summary(checks))
    if any(check.verdict is Verdict.FAIL for check in checks):
        raise typer.Exit(1)


@app.command(cls=StyledCommand)
def rbac(
    namespace: Annotated[
        str | None,
        typer.Option(
            help="Namespace of jobs.",
            show_default="TIMONEL_KUBERNETES_NAMESPACE, or that of kubectl's context",
        ),
    ] = None,
    *,
    user: Annotated[str | None, typer.Option(help="Who gets the rights: a user.")] = None,
    group: Annotated[str | None, typer.Option(help="Who gets the rights: a group.")] = None,
    service_account: Annotated[
        str | None,
        typer.Option(
            metavar="[NAMESPACE:]NAME", help="Who gets the rights: a ServiceAccount, as of a CI."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Print the Role and RoleBindings that users need.

    An administrator applies them: timonel cluster rbac --user NAME | kubectl apply -f -. Without a
    user, group or service account, only the Role is printed.
    """
    from timonel.cli.render.output import print_objects
    from timonel.engines.kubernetes.kubeconfig import find_namespace
    from timonel.engines.kubernetes.rights import subject, user_manifests
    from timonel.engines.kubernetes.settings import ClusterSettings

    settings = ClusterSettings.of(os.environ)
    place = namespace or settings.namespace
    place = place or find_namespace(settings.context, os.environ) or "default"
    found = (("User", user), ("Group", group), ("ServiceAccount", service_account))
    subjects = [subject(kind, name, place) for kind, name in found if name is not None]
    manifests = user_manifests(place, subjects, has_routes=settings.domain is not None)
    print_objects(manifests, as_json=json)


@app.command(cls=StyledCommand)
def plan(
    provider: Annotated[
        Provider, typer.Option("--on", help="Provider of the cluster.", metavar="gke|eks|aks")
    ],
    *,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="TYPE[:COUNT]", help="GPUs of a node: t4, l4, a100, a100-80gb, h100."),
    ] = None,
    tpu: Annotated[
        str | None,
        typer.Option(metavar="VERSION-SIZE", help="Slice of TPUs: v5e-8, v5p-16, v6e-4, ..."),
    ] = None,
    nodes: Annotated[str, typer.Option(metavar="MIN:MAX", help="Number of nodes.")] = "0:1",
    spot: Annotated[
        bool, typer.Option("--spot", help="Cheaper nodes that the provider may take away.")
    ] = False,
    name: Annotated[
        str | None, typer.Option(help="Name of the pool.", show_default="what is in it")
    ] = None,
    cluster: Annotated[str, typer.Option(help="Name of the cluster.")] = "CLUSTER",
    location: Annotated[
        str,
        typer.Option(help="Zone or region of the cluster; on aks, its resource group."),
    ] = "LOCATION",
    json: Json = False,
) -> None:
    """Print commands that create node pools with GPUs or TPUs.

    The commands are the provider's. Names follow its documentation, and are not verified there.
    Nothing is run.
    """
    from timonel.cli.render.output import print_json
    from timonel.engines.kubernetes.node_pools import (
        PoolRequest,
        gpu_pool,
        parse_nodes,
        tpu_pool,
    )

    if gpu is None and tpu is None:
        raise SpecError("nothing to plan", hint="give --gpu TYPE:COUNT or --tpu VERSION-SIZE")
    if gpu and tpu and name:
        raise SpecError("--name names one pool, and --gpu and --tpu are two", hint="remove --name")
    request = PoolRequest(provider.value, parse_nodes(nodes), spot, name, cluster, location)
    pools = [*([gpu_pool(request, gpu)] if gpu else []), *([tpu_pool(request, tpu)] if tpu else [])]
    if json:
        print_json({"pools": pools})
        return
    typer.echo("\n".join(map(_script, pools)), nl=False)


def _script(pool: Pool) -> str:
    """Return a pool's command, with comments on what tasks need."""
    options = [
        *(f"--accelerator {name}={count}" for name, count in pool.accelerators.items()),
        *(f"--node-selector {name}={value}" for name, value in pool.node_selector.items()),
        *(f"--toleration {_taint(each)}" for each in pool.tolerations),
    ]
    comments = [
        *pool.remarks,
        "Tasks run there with:",
        "  timonel train ... --on kubernetes \\",
        *(f"    {option} \\" for option in options[:-1]),
        f"    {options[-1]}",
    ]
    return "\n".join([*(f"# {line}" for line in comments), pool.command, ""])


def _taint(toleration: Mapping[str, str]) -> str:
    value = f"={toleration['value']}" if "value" in toleration else ""
    return f"{toleration['key']}{value}:{toleration['effect']}"
