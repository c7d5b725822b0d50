"""Training with parameter servers, for ``fit`` and custom loops.

A job of ``--ps N --workers M`` has these roles, of which only the chief runs the script:

    chief       one; runs the script, assigns steps, applies gradients, reports, saves, exports;
                computes no gradients itself. When lost, the job restarts (``restart-job``).
    worker      M; a TensorFlow server that computes steps. When lost, it restarts on the same
                address while the others continue (``restart-task``).
    ps          N; a TensorFlow server that stores the variables. When lost, the job restarts
                (``restart-job``). Stopped by the engine.

All of them start with the same command and differ only in ``TIMONEL_CLUSTER``. Workers and
parameter servers only run ``roles.run``.

    ledger            pure: which worker computes what, which gradients count and how much
    dispatcher        the ledger, shared by the chief's thread and those of the workers
    tracing           a model's train step as a function without side effects on variables
    refusals          checks of traced steps that cannot be sent to workers
    states            variables that a step changes besides its gradients
    gradient_buffers  gradients staged on the parameter servers, and their application
    feeding           Keras' own loop, with steps computed by workers
    worker_messages   other results of steps: states, metrics, logs
    loop              the implementation of ``fit``, ``evaluate`` and ``predict``
    preflight         decisions and checks before the first step
    pace              pace reports of the workers
    roles             the cluster: servers, the strategy, its coordinator
"""
