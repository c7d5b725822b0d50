"""Change the size of a running job, as ``--workers`` counts it."""

from __future__ import annotations

from timonel.engines import ElasticEngine, Engine
from timonel.errors import SpecError


def scale_workers(engine: Engine, job_id: str, workers: int) -> None:
    """Set a job's number of workers, as ``--workers`` counts them.

    Raises:
        SpecError: The job has no range of workers, or the number is outside the range.
        JobError: The job has ended.
    """
    status = engine.status(job_id)
    size = next((size for size in status.sizes if size.role == "worker"), None)
    if not isinstance(engine, ElasticEngine) or (size is None and not status.state.is_final):
        raise SpecError(
            f"expected a job that was started with a range of workers, got {job_id}",
            hint="'timonel train --workers 2:8' goes on with as few as 2 and grows to 8",
        )
    # The chief counts as a worker, except with parameter servers, where it only coordinates.
    chiefs = 0 if size is not None and size.serves else 1
    if size is not None and not size.least <= workers - chiefs <= size.most:
        raise SpecError(
            f"expected {size.least + chiefs} to {size.most + chiefs} workers, got {workers}"
        )
    engine.scale(job_id, {"worker": workers - chiefs})
