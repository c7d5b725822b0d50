"""Translate the options of `timonel.serve` to a server's settings."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from timonel.errors import NotFoundError, SpecError
from timonel.options import options_of, with_defaults
from timonel.serving.manager.model_config import read_models
from timonel.serving.protos.text import TextProtoError
from timonel.serving.references import resolve, workspace_for
from timonel.serving.serve_options import Reference, ServeOptions
from timonel.serving.settings.auth import AccessSettings
from timonel.serving.settings.base import EVERY_MODEL, as_spec_error
from timonel.serving.settings.models import ModelSettings, RequestLogSettings
from timonel.serving.settings.runtime import by_model, default_op_threads, runtime_choice
from timonel.serving.settings.server import ServerSettings
from timonel.serving.status import StatusError
from timonel.storage import Workspace, local_path


def settings_and_workspace(
    models: Sequence[Reference], workspace: Workspace | Reference | None, options: ServeOptions
) -> tuple[ServerSettings, Workspace]:
    """Return the server's settings and workspace."""
    options = with_defaults(ServeOptions, options)
    config = options["config"]
    if bool(models) == (config is not None):
        if models:
            raise SpecError("a config names the models itself", hint="leave out the models or it")
        raise SpecError(
            "no model to serve",
            hint="use 'timonel serve NAME' ('timonel models' lists the names), "
            "'timonel serve FOLDER' or 'timonel serve --config FILE'",
        )
    if options["rest_port"] == options["grpc_port"] != 0:
        raise SpecError(
            f"REST and gRPC cannot share the port {options['rest_port']}",
            hint="give them different ports",
        )
    if config is None:
        file = None
        place = workspace_for(workspace, models)
        served = tuple(resolve(each, place, options["version"]) for each in models)
        _check_names("--allow-python", options["allow_python"], served)
        _check_names("--batching", options["batching"], served)
    else:
        file = local_path(config)
        if not file.exists():
            raise NotFoundError(
                f"config file {file} does not exist", hint="write a ModelServerConfig there"
            )
        place = workspace_for(workspace, [file.absolute().parent])
        served = _configured(file)
    settings = settings_of(served, options, file, place.servers)
    _check_files(settings.access)
    return settings, place


def settings_of(
    models: Sequence[ModelSettings],
    options: ServeOptions,
    config_file: Path | None = None,
    servers: Path | None = None,
) -> ServerSettings:
    """Return the settings of a server of some models.

    A server that requires credentials gets a secret owner key, with which the process that starts
    it monitors it. The key is never written to disk.

    Args:
        options: The options, without those that are about models.
        config_file: The file of a config that names the models.
    """
    options = with_defaults(ServeOptions, options)
    _check_companions(options)
    known = {name: option for name, (_, option) in options_of(ServeOptions).items()}
    paths = {option.setting: name for name, option in known.items() if option.setting}
    values: Mapping[str, Any] = options
    found = {
        path: values[name]
        for path, name in paths.items()
        if not (values[name] is None and known[name].computed)
    }
    if options["tls_cert"] is None:
        found = {path: each for path, each in found.items() if not path.startswith("access.tls.")}
    runtime, op_threads = options["runtime"], options["op_threads"]
    chosen = runtime_choice([runtime] if isinstance(runtime, str) else runtime)
    found |= {f"runtime.{name}": value for name, value in chosen.items()} | {
        "config_file": None if config_file is None else str(config_file),
        "config_poll_s": options["poll_s"],
        "load.settle_s": options["poll_s"],
        "runtime.intra_op_threads": default_op_threads() if op_threads is None else op_threads,
        "runtime.allow_ops": by_model(options["allow_ops"], "an operation"),
        "runtime.batching": {"kind": "adaptive", "assumed": options["batching"]},
        "access.owner_key": secrets.token_urlsafe(32) if options["api_keys"] else None,
        "servers_folder": None if servers is None else str(servers),
    }
    try:
        logged = _logged(models, options)
        return ServerSettings.model_validate(_nested({**found, "models": logged}))
    except ValidationError as error:
        derived = {"config_poll_s": "poll_s", "sampling_rate": "request_log_rate"}
        flags = {
            place: known[name].flag or f"--{name.replace('_', '-')}"
            for place, name in {**paths, **derived}.items()
        }
        raise as_spec_error(error, flags) from error


def _check_files(access: AccessSettings) -> None:
    """Read the files of keys and TLS once before a process is started for them."""
    # Most servers need neither of these modules.
    if access.api_keys is not None:
        from timonel.serving.auth.keys import read_entries  # noqa: PLC0415

        read_entries(Path(access.api_keys))
    if access.tls is not None:
        from timonel.serving.auth.tls import read_pem  # noqa: PLC0415

        read_pem(access.tls)


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted name as nested dictionaries."""
    found: dict[str, Any] = {}
    for path, value in values.items():
        *groups, name = path.split(".")
        place = found
        for group in groups:
            place = place.setdefault(group, {})
        place[name] = value
    return found


def _check_names(flag: str, names: Sequence[str], served: Sequence[ModelSettings]) -> None:
    for name in names:
        if name not in {EVERY_MODEL, *(model.name for model in served)}:
            raise SpecError(
                f"{flag} names {name}, which is not served",
                hint=f"the models are: {', '.join(model.name for model in served)}; or * for all",
            )


def _logged(models: Sequence[ModelSettings], options: ServeOptions) -> tuple[ModelSettings, ...]:
    """Return the models with their request logs."""
    if options["request_log"] is None:
        return tuple(models)
    if options["config"] is not None:
        raise SpecError(
            "request_log cannot be used with a config",
            hint="give each model of the config a logging_config",
        )
    folder, rate = Path(options["request_log"]).absolute(), options["request_log_rate"]
    return tuple(
        model.model_copy(
            update={
                "request_log": RequestLogSettings(
                    filename_prefix=str(folder / model.name), sampling_rate=rate
                )
            }
        )
        for model in models
    )


def _configured(file: Path) -> tuple[ModelSettings, ...]:
    """Return the models of a ModelServerConfig."""
    try:
        models = read_models(str(file))
    except TextProtoError as error:
        raise SpecError(f"{file} is not a ModelServerConfig: {error.diagnosis}") from error
    except StatusError as error:
        raise SpecError(error.message) from error
    if not models:
        raise SpecError(f"{file} names no models")
    return models


_COMPANIONS = {
    "tls_cert": "tls_key",
    "tls_key": "tls_cert",
    "tls_client_ca": "tls_cert",
}
"""Options that require another one."""


def _check_companions(options: Mapping[str, Any]) -> None:
    for name, companion in _COMPANIONS.items():
        if options[name] is not None and options[companion] is None:
            flag, other = (f"--{each.replace('_', '-')}" for each in (name, companion))
            raise SpecError(f"{flag} requires {other}")
