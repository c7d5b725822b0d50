"""The command ``timonel-model-server``, compatible with ``tensorflow_model_server``.

Standard output, standard error and exit statuses are those of TensorFlow Serving, so that start
scripts work unchanged. ``timonel image build --server`` makes an image like TensorFlow Serving's.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from timonel.errors import TimonelError
from timonel.serving.batching.tfserving_parameters import read_parameters
from timonel.serving.manager.model_config import read_models
from timonel.serving.manager.reload import UnservableError, unavailable
from timonel.serving.process_io import configure_logging
from timonel.serving.protos.text import TextProtoError, read_text
from timonel.serving.server import run
from timonel.serving.settings.batching import cores
from timonel.serving.settings.server import ServerSettings
from timonel.serving.status import StatusError
from timonel.serving.tfserving.flags import Parsed, known_flags, parse, usage, with_variables
from timonel.serving.tfserving.options import metrics_path_from, translate

_PROGRAM = "timonel-model-server"
_FAILED = 255
_LOG = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve with the given flags until SIGTERM or SIGINT."""
    flags = known_flags(cores())
    parsed = parse(sys.argv[1:] if arguments is None else arguments, flags)
    parsed = with_variables(parsed, os.environ)
    for error in parsed.errors:
        _say(error, sys.stderr)
    if parsed.wants_usage:
        _say(usage(_PROGRAM, flags))
        return _FAILED
    if parsed.values["version"]:
        _say(_versions())
        return 0
    if parsed.unknown:
        _say(f"unknown argument: {parsed.unknown[0]}\n{usage(_PROGRAM, flags)}")
    return _serve(parsed)


def _serve(parsed: Parsed) -> int:
    configure_logging()
    try:
        settings, remarks = _translated(parsed)
        for remark in remarks:
            _LOG.warning("%s", remark)
        run(settings)
    except TextProtoError as error:
        _say(error.diagnosis, sys.stderr)
        return _refuse(str(error))
    except UnservableError as error:
        return _refuse(str(unavailable(error.failures, "servable")))
    except (StatusError, TimonelError) as error:
        return _refuse(str(error))
    return 0


def _translated(parsed: Parsed) -> tuple[ServerSettings, list[str]]:
    models, batching, monitoring = (
        str(parsed.values[name])
        for name in ("model_config_file", "batching_parameters_file", "monitoring_config_file")
    )
    return translate(
        parsed,
        cores(),
        models=read_models(models) if models else None,
        batching=read_parameters(Path(batching)) if batching else None,
        metrics_path=metrics_path_from(read_text(monitoring), monitoring) if monitoring else None,
    )


def _refuse(reason: str) -> int:
    _say(f"Failed to start server. Error: {reason}")
    return _FAILED


def _versions() -> str:
    ours = importlib.metadata.version("timonel")
    library = importlib.metadata.version("tensorflow")
    return f"TensorFlow ModelServer: timonel {ours}\nTensorFlow Library: {library}"


def _say(text: str, stream: TextIO | None = None) -> None:
    out = stream or sys.stdout
    out.write(text.rstrip("\n") + "\n")
    out.flush()


if __name__ == "__main__":
    sys.exit(main())
