"""Deploy models as endpoints."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import Any, Unpack

from timonel.arguments import checked
from timonel.endpoints.access_documents import AccessDocuments
from timonel.endpoints.autoscaling.policy import ScalingPolicy
from timonel.endpoints.autoscaling.policy_files import read_policy
from timonel.endpoints.checks import (
    check_autoscaler,
    check_port,
    check_spec,
    free_port,
    validated,
)
from timonel.endpoints.control.plan import autoscaler_spec, service_spec
from timonel.endpoints.control.service import SERVICE, control_service
from timonel.endpoints.deploy_options import DeployOptions
from timonel.endpoints.engine import check_engine, documents_of
from timonel.endpoints.folder import (
    EndpointFolder,
    EndpointStatus,
    Revision,
    list_endpoints,
    open_endpoint,
)
from timonel.endpoints.gateway.parts import Secrets
from timonel.endpoints.gateway.process import envoy_binary
from timonel.endpoints.handle import Endpoint, record
from timonel.endpoints.spec import EndpointSpec, endpoint_name, format_shares
from timonel.engines import ServiceEngine
from timonel.errors import Interrupted, NotFoundError, SpecError
from timonel.options import documented, options_of
from timonel.processes.cores import usable_cores
from timonel.serving.references import resolve, version_of, versions_at, workspace_for
from timonel.serving.settings.models import ModelSettings
from timonel.storage import Workspace, local_path, normalise
from timonel.storage.aliases import LATEST, split_alias
from timonel.units import parse_bytes

_ANY = "0.0.0.0"  # noqa: S104 - of a pod, say, whose network is the cluster's


@checked()
@documented(DeployOptions)
def deploy(
    model: str,
    *,
    workspace: Workspace | str | os.PathLike[str] | None = None,
    server_args: Sequence[str] = (),
    wait: bool = True,
    on_change: Callable[[EndpointStatus], None] | None = None,
    **options: Unpack[DeployOptions],
) -> Endpoint:
    """Deploy a model version as a new endpoint, or change an existing one.

    All requests go to the version once it is ready. Until then, an existing endpoint keeps its
    current traffic.

    Args:
        model: A model of the workspace (``digits``, its newest version), or one of its versions
            (``digits/3``). The endpoint then keeps its version until it is changed. With an alias
            (``digits@champion``), it follows the alias; with ``digits@latest``, new versions.
        workspace: The workspace, or its path.
        server_args: Further arguments of ``timonel serve``; an existing endpoint keeps its own if
            none are given.
        wait: Wait until the endpoint answers requests.
        on_change: Called when the status changes during the wait.
        **options: See `DeployOptions`.

    Raises:
        NotFoundError: The model or version does not exist.
        SpecError: A value is invalid, options contradict each other, or Envoy is not installed.
        ServingError: The port is in use, or the version is not ready in time.
    """
    place = workspace_for(workspace, [model])
    engine = check_engine(place, options.get("on"))
    if engine.is_one_machine:
        envoy_binary()
    spec, version, before = _specified(model, place, engine, server_args, options)
    check_autoscaler(spec, engine)
    engine.check_exposed(spec.name, has_tls=spec.access.tls is not None)
    cause = _cause(spec, version, None if before is None else before.spec, options)
    number = 0 if before is None else before.number
    if engine.is_one_machine:
        record(place, spec, cause, number)
    else:
        _record_with_files(place, engine, spec, cause, number, _given_files(options))
    endpoint = Endpoint(place, spec.name)
    if wait:
        _wait(endpoint, on_change)
    return endpoint


def preview(
    model: str,
    *,
    workspace: Workspace | str | os.PathLike[str] | None = None,
    server_args: Sequence[str] = (),
    **options: Unpack[DeployOptions],
) -> list[dict[str, Any]]:
    """Return the objects that `deploy` would have in a cluster; create nothing.

    Takes the arguments of `deploy`.
    """
    place = workspace_for(workspace, [model])
    engine = check_engine(place, options.get("on"))
    spec, _, _ = _specified(model, place, engine, server_args, options)
    if not engine.is_one_machine:
        _changed_contents(engine, spec, _given_files(options))  # checks them
    found = engine.preview(control_service(place, engine))
    has_tls = spec.access.tls is not None
    found += engine.preview_exposed(spec.name, SERVICE, spec.port, has_tls=has_tls)
    for version in spec.traffic.versions:
        service = service_spec(spec, version, place.uri)
        found += engine.preview(service, autoscaler_spec(spec.scaling))
    return found


def _resolved(
    model: str, place: Workspace, options: DeployOptions
) -> tuple[ModelSettings, DeployOptions]:
    """Return a model, or that of the endpoint with this name."""
    try:
        return resolve(model, place), options
    except NotFoundError:
        named = [each for each in list_endpoints(documents_of(place)) if each.name == model]
        if not named:
            raise
        return resolve(named[0].revision().spec.model, place), {"name": model, **options}


def _specified(
    model: str,
    place: Workspace,
    engine: ServiceEngine,
    server_args: Sequence[str],
    options: DeployOptions,
) -> tuple[EndpointSpec, int | None, Revision | None]:
    """Return the checked specification, the version that the user names, and what there is."""
    found, options = _resolved(model, place, options)
    reference, version = _stored_reference(found, place), version_of(found)
    follow = split_alias(model)[1]
    if follow == LATEST:
        version = _newest(found, model)
    name = options.get("name") or endpoint_name(reference)
    try:
        before = open_endpoint(documents_of(place), name).revision()
    except NotFoundError:
        before = None
    fields = _fields(options, None if before is None else before.spec)
    if before is None:
        fields.setdefault("host", "127.0.0.1" if engine.is_one_machine else _ANY)
        fields.setdefault("image", engine.default_image)
    fields |= {"name": name, "model": reference}
    fields |= _arguments(server_args, options)
    if before is None or before.spec.model != reference:
        # Rules of another model name its versions.
        fields["traffic"] = {"percent": {version or _newest(found, model): 100}}
    elif version is not None:
        fields["traffic"] |= {"percent": {version: 100}, "shadow": None}
    if version is not None or before is None or before.spec.model != reference:
        fields["follow"] = follow
    if before is None and not options.get("port"):
        fields["port"] = free_port(fields["host"], place)
    spec = validated(fields)
    if before is None or spec.port != before.spec.port:
        check_port(spec.host, spec.port, place)
    check_spec(spec, place)
    return (spec if spec.access.files else _with_contents(spec, None)), version, before


def _record_with_files(
    place: Workspace,
    engine: ServiceEngine,
    spec: EndpointSpec,
    cause: str,
    after: int,
    given: Collection[str],
) -> None:
    """Record a specification, with the contents of the given files for other machines."""
    contents = _changed_contents(engine, spec, given)
    if contents is None:
        record(place, spec, cause, after)
        return
    endpoint = EndpointFolder(documents_of(place), spec.name)
    with AccessDocuments.of(engine, spec.name).adding(contents, endpoint, after) as added:
        record(place, _with_contents(spec, added), cause, after)


def _changed_contents(
    engine: ServiceEngine, spec: EndpointSpec, given: Collection[str]
) -> Secrets | None:
    """Return the contents of an endpoint's files; None if it has none, or they are stored."""
    if not spec.access.files:
        return None
    return AccessDocuments.of(engine, spec.name).changed(spec.access, given)


def _with_contents(spec: EndpointSpec, contents: str | None) -> EndpointSpec:
    access = spec.access.model_copy(update={"contents": contents})
    return spec.model_copy(update={"access": access})


def _wait(endpoint: Endpoint, on_change: Callable[[EndpointStatus], None] | None) -> None:
    try:
        endpoint.wait(on_change=on_change)
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; {endpoint.name} goes on starting",
            hint=f"look with 'timonel endpoints show {endpoint.name}', or stop it with 'timonel "
            f"endpoints delete {endpoint.name}'",
        ) from None


def _fields(options: DeployOptions, before: EndpointSpec | None) -> dict[str, Any]:
    """Return the fields of the previous specification, changed by options."""
    fields: dict[str, Any] = {} if before is None else before.model_dump()
    given = {key: value for key, value in options.items() if value is not None}
    fields |= {key: given[key] for key in ("host", "port", "image") if key in given}
    limits: dict[str, Any] = {key: given[key] for key in ("timeout_s", "max_held") if key in given}
    for option, field in (("rate_limit", "rate"), ("total_rate_limit", "total_rate")):
        if option in given:
            limits[field] = None if given[option] == "none" else given[option]
    fields["limits"] = {**fields.get("limits", {}), **limits}
    fields["access"] = {**fields.get("access", {}), **_removed(given), **_access(given)}
    fields["scaling"] = _scaling(given, None if before is None else before.scaling)
    fields["resources"] = {**fields.get("resources", {}), **_resources(given)}
    return fields


def _arguments(server_args: Sequence[str], options: DeployOptions) -> dict[str, Any]:
    """Return the server arguments, if they are given or removed."""
    if server_args and options.get("no_server_args"):
        raise SpecError("--no-server-args contradicts server arguments", hint="give one of them")
    if server_args or options.get("no_server_args"):
        return {"server_args": tuple(server_args)}
    return {}


def _access(given: dict[str, Any]) -> dict[str, Any]:
    for both, names in (("a certificate and its key", ("tls_cert", "tls_key")),
                        ("an issuer and its keys", ("jwt_issuer", "jwt_jwks"))):  # fmt: skip
        if len([name for name in names if name in given]) == 1:
            flags = " and ".join(f"--{name.replace('_', '-')}" for name in names)
            raise SpecError(f"{both} belong together", hint=f"give {flags}")

    def path(name: str) -> str:
        return str(local_path(given[name]).absolute())

    access: dict[str, Any] = {}
    if "tls_cert" in given:
        access["tls"] = {"cert": path("tls_cert"), "key": path("tls_key")}
    if "api_keys" in given:
        access["api_keys"] = path("api_keys")
    if "jwt_issuer" in given:
        access["jwt"] = {
            "issuer": given["jwt_issuer"],
            "audience": given.get("jwt_audience"),
            "jwks": given["jwt_jwks"] if "://" in str(given["jwt_jwks"]) else path("jwt_jwks"),
            "claims": _claims(given.get("jwt_claim", ())),
        }
    elif "jwt_audience" in given or given.get("jwt_claim"):
        raise SpecError(
            "an audience or a claim needs an issuer", hint="give --jwt-issuer and --jwt-jwks"
        )
    if "allow_host" in given:
        access["hosts"] = tuple(given["allow_host"])
    if "trust_proxy" in given:
        access["proxies"] = tuple(given["trust_proxy"])
    return access


def _claims(texts: Sequence[str]) -> dict[str, str]:
    found = dict(text.partition("=")[::2] for text in texts)
    if not all(found.values()):
        raise SpecError(f"expected --jwt-claim CLAIM=VALUE, got {' '.join(texts)}")
    return found


def _given_files(options: DeployOptions) -> list[str]:
    """Return the fields of access control with files that options name."""
    fields = {"tls": "tls_cert", "api_keys": "api_keys", "jwt": "jwt_jwks"}
    return [field for field, option in fields.items() if options.get(option) is not None]


def _removed(given: dict[str, Any]) -> dict[str, None]:
    """Return the fields of access control that options remove."""
    found: dict[str, None] = {}
    for flag, field, options in (
        ("no_tls", "tls", ("tls_cert", "tls_key")),
        ("no_api_keys", "api_keys", ("api_keys",)),
        ("no_jwt", "jwt", ("jwt_issuer", "jwt_audience", "jwt_jwks", "jwt_claim")),
    ):
        if not given.get(flag):
            continue
        for option in options:
            if option in given:
                names = [f"--{name.replace('_', '-')}" for name in (flag, option)]
                raise SpecError(f"{names[0]} contradicts {names[1]}", hint="give one of them")
        found[field] = None
    return found


def _resources(given: dict[str, Any]) -> dict[str, Any]:
    found = {"cpus": given["cpus"]} if "cpus" in given else {}
    if "memory" in given:
        try:
            found["memory_bytes"] = parse_bytes(given["memory"])
        except SpecError as error:
            raise SpecError(f"--memory: {error.message}", hint=error.hint) from error
    return found


def _scaling(given: dict[str, Any], before: ScalingPolicy | None) -> dict[str, Any]:
    """Return the fields of a scaling policy."""
    if "target_concurrency" in given and "target_rps" in given:
        raise SpecError("a replica has one target: --target-concurrency or --target-rps")
    if "policy" in given:
        scaling: dict[str, Any] = read_policy(local_path(given["policy"])).model_dump()
    elif before is not None:
        scaling = before.model_dump()
    else:
        scaling = {"min_replicas": 1, "max_replicas": max(1, usable_cores())}
    for bound in ("min_replicas", "max_replicas"):
        if bound in given:
            scaling[bound] = given[bound]
    for metric, option in (("concurrency", "target_concurrency"), ("rps", "target_rps")):
        if option in given:
            scaling |= {"algorithm": "kpa", "metric": metric, "target": given[option]}
            scaling |= {"cluster_metrics": ()}
    least, most = scaling.get("min_replicas", 0), scaling.get("max_replicas", 0)
    if "max_replicas" not in given and most and least > most:
        scaling["max_replicas"] = least
    return scaling


def _cause(
    spec: EndpointSpec, version: int | None, before: EndpointSpec | None, options: DeployOptions
) -> str:
    """Return what a deployment changes, for the history of the endpoint."""
    target = spec.model_name if version is None else f"{spec.model_name}/{version}"
    if version is not None and spec.follow is not None:
        target = f"{spec.model_name}@{spec.follow}"
    elif before is None:
        target = f"{spec.model_name}/{next(iter(spec.traffic.percent))}"
    if before is None:
        return f"deploy {target}"
    words = []
    if spec.traffic.percent != before.traffic.percent:
        words.append(f"replaces {format_shares(before.traffic.percent)}")
    known = options_of(DeployOptions)
    flags = [
        known[key][1].flag or f"--{key.replace('_', '-')}"
        for key, value in options.items()
        if key not in {"name", "on"} and value is not None and value is not False and value != ()
    ]
    if spec.server_args != before.server_args and not options.get("no_server_args"):
        flags.append("server arguments")
    if flags:
        words.append(f"with {', '.join(flags)}")
    return f"deploy {target}: {', '.join(words)}" if words else f"deploy {target}"


def _stored_reference(model: ModelSettings, workspace: Workspace) -> str:
    """Return a reference that is valid in the folder of any process."""
    if model.base_path == str(workspace.models / model.name):
        return model.name
    return normalise(model.base_path)


def _newest(found: ModelSettings, model: str) -> int:
    """Return the newest version of a model."""
    versions = versions_at(found.base_path)
    if not versions:
        raise NotFoundError(
            f"{model} has no numbered versions in {found.base_path}",
            hint=f"of a single SavedModel, 'timonel models add {found.name} {model}' makes one",
        )
    return versions[-1]
