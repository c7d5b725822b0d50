"""Mirror that copies runs to MLflow: parameters, metrics, inputs and results.

A run goes to the server in ``MLFLOW_TRACKING_URI``, else to ``mlflow.db`` (SQLite) in the
workspace: ``mlflow ui --backend-store-uri sqlite:///<workspace>/mlflow.db`` shows it. The trials of
a study are child runs of a run that bears its name.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
import posixpath
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from timonel.errors import MissingExtraError, TimonelError
from timonel.storage import exclusive, read_document
from timonel.storage.workspace import Workspace
from timonel.tracking.events import FINISH, Event, decode_number
from timonel.tracking.mirrors.base import Mirror, subject
from timonel.tracking.reading import list_runs
from timonel.tracking.records import Artifact, RunRecord, event_artifacts

RUN_ID_TAG = "timonel.run_id"
PARENT_TAG = "mlflow.parentRunId"
_Metric = tuple[str, float, int, int]
"""Key, value, time in milliseconds, step."""
_STATUS = {
    "running": "RUNNING",
    "succeeded": "FINISHED",
    "failed": "FAILED",
    "stopped": "KILLED",
    "lost": "FAILED",
}
# Limits of MLflow's stores: mlflow/utils/validation.py.
_METRICS_PER_BATCH = 1000
_PARAMS_PER_BATCH = 100
_PARAM_LENGTH = 6000
_TAG_LENGTH = 8000
_KEY_LENGTH = 250
_CUT_MARK = "… [truncated by timonel: the run record has the full value]"
_NOT_IN_KEYS = re.compile(r"[^\w\-. :/]")
# Creating or migrating the tables takes seconds; two processes must not do it at once.
_LOCK_TIMEOUT_S = 120.0


class MlflowMirror(Mirror):
    """Copies runs to MLflow's tracking store. Not thread-safe."""

    name: ClassVar[str] = "mlflow"

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace)
        self._client: Any = None
        self._mlflow_id = ""
        self._parent_id = ""
        self._study: str | None = None
        self._params: dict[str, str] = {}

    @classmethod
    def is_available(cls) -> bool:
        """Return whether MLflow is installed."""
        return importlib.util.find_spec("mlflow") is not None

    @property
    def tracking_uri(self) -> str:
        """URI of the tracking store."""
        return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self._database}"

    def begin(self, run: RunRecord) -> bool:
        """Find the run by the tag with its timonel ID, or create it."""
        client = self._connect()
        found = self._find(run.id)
        known = found is not None
        self._study = run.parent
        if found is None:
            experiment = self._experiment_id(subject(self.workspace, run))
            parent = {} if run.parent is None else self._parent(run.parent, run, experiment)
            found = client.create_run(
                experiment,
                start_time=_ms(run.started_at),
                run_name=run.name or run.id,
                tags={**_header_tags(run), **parent},
            )
        self._mlflow_id = found.info.run_id
        self._parent_id = found.data.tags.get(PARENT_TAG, "")
        if self._parent_id and not run.is_finished:
            client.update_run(self._parent_id, status="RUNNING")
        self._params = dict(found.data.params)
        self._log(params=run.params)
        for artifact in run.header.inputs:
            self._input(artifact)
        return known

    def events(self, batch: Sequence[Event]) -> None:
        """Copy parameters, metrics, inputs, outputs and the end."""
        metrics = [metric for event in batch for metric in _metrics(event)]
        params: dict[str, Any] = {}
        for event in batch:
            if event["type"] == "params" and isinstance(event.get("params"), dict):
                params.update(event["params"])
        self._log(metrics=metrics, params=params)
        for artifact in event_artifacts(batch, "input"):
            self._input(artifact)
        for artifact in event_artifacts(batch, "output"):
            self._artifact_tag("output", artifact)
        for event in batch:
            if event["type"] == FINISH:
                self._finish(event)

    def end(self) -> None:
        """Close the run; nothing is buffered, so there is nothing to flush."""
        self._mlflow_id = ""

    @property
    def _database(self) -> str:
        return str(self.workspace.root / "mlflow.db")

    @property
    def _is_own_database(self) -> bool:
        return self.tracking_uri == f"sqlite:///{self._database}"

    def _connect(self) -> Any:
        """Return MLflow's client; the first call creates or migrates the tables."""
        if self._client is None:
            with exclusive(self.workspace.root / "mlflow.lock", timeout_s=_LOCK_TIMEOUT_S):
                with _quietly():
                    client = _client_class()(tracking_uri=self.tracking_uri)
                    client.search_experiments(max_results=1)
                self._client = client
        return self._client

    def _find(self, run_id: str) -> Any:
        experiments = [item.experiment_id for item in self._client.search_experiments()]
        if not experiments:
            return None
        runs = self._client.search_runs(
            experiments, filter_string=f"tags.`{RUN_ID_TAG}` = '{run_id}'", max_results=1
        )
        return runs[0] if runs else None

    def _experiment_id(self, name: str) -> str:
        from mlflow.exceptions import MlflowException  # noqa: PLC0415 - takes seconds

        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            # MLflow's default is a folder below the process's working directory.
            place = (self.workspace.root / "mlartifacts" / name).as_uri()
            try:
                created: str = self._client.create_experiment(
                    name, artifact_location=place if self._is_own_database else None
                )
            except MlflowException:
                # The mirror of another run may have created it in the meantime.
                experiment = self._client.get_experiment_by_name(name)
                if experiment is None:
                    raise
            else:
                return created
        if experiment.lifecycle_stage == "deleted":
            self._client.restore_experiment(experiment.experiment_id)
        return str(experiment.experiment_id)

    def _log(
        self, metrics: Sequence[_Metric] = (), params: Mapping[str, Any] | None = None
    ) -> None:
        from mlflow.entities import Metric, Param, RunTag  # noqa: PLC0415 - takes seconds

        texts = {_key(n): _shortened(_text(v), _PARAM_LENGTH) for n, v in (params or {}).items()}
        new = {name: text for name, text in texts.items() if name not in self._params}
        # MLflow's parameters never change, so changed values become tags.
        tags = [
            RunTag(_key(f"timonel.param.{name}"), text)
            for name, text in texts.items()
            if self._params.get(name, text) != text
        ]
        for metric_batch in _batches([Metric(*metric) for metric in metrics], _METRICS_PER_BATCH):
            self._client.log_batch(self._mlflow_id, metrics=metric_batch)
        for param_batch in _batches([Param(*item) for item in sorted(new.items())]):
            self._client.log_batch(self._mlflow_id, params=param_batch)
        for tag_batch in _batches(tags):
            self._client.log_batch(self._mlflow_id, tags=tag_batch)
        self._params.update(new)

    def _input(self, artifact: Artifact) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag  # noqa: PLC0415 - see above

        self._artifact_tag("input", artifact)
        if artifact.type in {"dataset", "files"} and artifact.digest:
            entity = Dataset(
                name=artifact.label[:500],
                digest=artifact.digest.rpartition(":")[2][:36],
                source_type="local" if "://" not in artifact.uri else artifact.uri.split(":")[0],
                source=json.dumps({"uri": artifact.uri}),
                profile=json.dumps({"digest": artifact.digest, **artifact.metadata}, default=str),
            )
            tag = InputTag("mlflow.data.context", artifact.type)
            self._client.log_inputs(self._mlflow_id, [DatasetInput(entity, [tag])])

    def _artifact_tag(self, way: str, artifact: Artifact) -> None:
        name = _key(f"timonel.{way}.{artifact.type}.{artifact.label}")
        self._tag(name, " ".join(filter(None, (artifact.uri, artifact.digest))))

    def _finish(self, event: Event) -> None:
        for name in ("status", "message", "cause"):
            if event.get(name):
                self._tag(f"timonel.{name}", str(event[name]))
        status = _STATUS.get(str(event.get("status")), "FAILED")
        self._client.set_terminated(self._mlflow_id, status, _ms(event["t"]))
        if self._parent_id:
            trials = [run for run in list_runs(self.workspace) if run.parent == self._study]
            if all(run.is_finished for run in trials):
                ended = max(run.ended_at or event["t"] for run in trials)
                self._client.set_terminated(self._parent_id, "FINISHED", _ms(ended))

    def _parent(self, study: str, trial: RunRecord, experiment: str) -> dict[str, str]:
        """Return the tag that names the run of a study, which the first trial creates."""
        created_at = 0.0
        with contextlib.suppress(TimonelError, KeyError):  # the study may have been removed
            file = self.workspace.studies / study / "study.json"
            created_at = float(read_document(file, "study")["created_at"])
        # Workspaces that share a server may have studies of the same name.
        key = f"{study}@{created_at}"
        with exclusive(self.workspace.root / "mlflow.lock", timeout_s=_LOCK_TIMEOUT_S):
            found = self._find(key) or self._client.create_run(
                experiment,
                start_time=_ms(created_at or trial.started_at),
                run_name=study,
                tags={RUN_ID_TAG: key, "timonel.kind": "study"},
            )
        return {PARENT_TAG: found.info.run_id}

    def _tag(self, name: str, text: str) -> None:
        self._client.set_tag(self._mlflow_id, name, _shortened(text, _TAG_LENGTH))


def _client_class() -> Any:
    # MLflow sends telemetry unless it is disabled before the import.
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    try:
        from mlflow.tracking import MlflowClient  # noqa: PLC0415 - takes seconds
    except ImportError as error:
        raise MissingExtraError("mirroring runs to MLflow", "mlflow") from error
    return MlflowClient


@contextlib.contextmanager
def _quietly() -> Iterator[None]:
    """Suppress messages of MLflow and Alembic on importing and creating tables."""
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic")]
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _metrics(event: Event) -> list[_Metric]:
    """Return the values of a metrics event; the step is the training step, else the epoch."""
    metrics = event.get("metrics")
    if event["type"] != "metrics" or not isinstance(metrics, Mapping):
        return []
    step = next((event[name] for name in ("step", "epoch") if isinstance(event.get(name), int)), 0)
    decoded = {name: decode_number(value) for name, value in metrics.items()}
    return [
        (_key(name), value, _ms(event["t"]), step)
        for name, value in decoded.items()
        if value is not None
    ]


def _header_tags(run: RunRecord) -> dict[str, str]:
    git = run.header.git or {}
    tags = {
        RUN_ID_TAG: run.id,
        "timonel.kind": run.kind,
        "timonel.job_id": run.job_id,
        "timonel.version": run.header.timonel,
        "timonel.command": " ".join(run.header.command),
        "mlflow.source.type": "JOB" if run.job_id else "LOCAL",
        "mlflow.source.name": next(
            (item.uri for item in run.inputs if item.type == "source"), f"timonel {run.kind}"
        ),
        "mlflow.source.git.commit": git.get("commit"),
        "mlflow.source.git.repoURL": git.get("remote"),
    }
    return {name: _shortened(str(text), _TAG_LENGTH) for name, text in tags.items() if text}


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _key(name: str) -> str:
    """Return the closest name to ``name`` that MLflow accepts."""
    cleaned = _NOT_IN_KEYS.sub("_", name).strip("/ ")[:_KEY_LENGTH].rstrip("/ ") or "_"
    is_plain = posixpath.normpath(cleaned) == cleaned and not cleaned.startswith("..")
    return cleaned if is_plain and cleaned != "." else cleaned.replace("/", "_").replace(".", "_")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else str(value)


def _shortened(value: str, limit: int) -> str:
    return value if len(value) <= limit else value[: limit - len(_CUT_MARK)] + _CUT_MARK


def _batches(items: Sequence[Any], size: int = _PARAMS_PER_BATCH) -> Iterator[Sequence[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
