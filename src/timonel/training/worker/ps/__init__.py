"""Training with parameter servers: ``fit`` and custom loops, of both Kerases.

A job of ``--ps N --workers M`` has these roles, of which only the chief runs the script:

    chief       one; runs the script, deals out steps, applies gradients, reports, saves, exports;
                computes no gradients itself. Lost: the job restarts (``restart-job``).
    worker      M; a TensorFlow server that computes what it is sent. Lost: it is started again on
                its address while the others go on (``restart-task``).
    ps          N; a TensorFlow server that keeps the variables. Lost: the job restarts
                (``restart-job``). Ended by the engine.

All of them are started with the same command and told apart by ``TIMONEL_CLUSTER`` alone; no
further environment is needed. ``roles.serve`` is all that a worker or ps does.

    ledger      pure: which worker computes what, which gradients count and how much
    desk        the ledger between the chief's thread and those of the workers
    tracing     a model's train step as a function that changes nothing but a worker's slots
    states      what such a step changes besides its gradients
    slots       where gradients wait on the parameter servers, and how they are applied
    feeding     Keras' own loop, with steps that workers compute
    telling     what they tell the chief besides gradients: states, metrics, logs
    loop        what stands behind ``fit``, ``evaluate`` and ``predict``
    terms       what is decided, and refused, before the first step
    roles       the cluster: servers, the strategy, its coordinator
"""

from __future__ import annotations

import threading
from typing import Any


def serve(task: Any, termination: Any) -> None:
    """Be a worker or a parameter server: serve until SIGTERM comes.

    A worker leaves at once: what it was at is computed again. A parameter server has what the
    chief is to save.

    Args:
        task: The `bootstrap.Task` of this process.
        termination: What raises at SIGTERM.
    """
    from timonel.training.worker.ps import roles  # noqa: PLC0415 - imports TensorFlow

    termination.install()
    _kept = roles.serve(task.cluster, task.task_dir)
    if task.cluster.role == "ps":
        roles.leave_after_saving(termination, task.job_dir / "requests")
    threading.Event().wait()
