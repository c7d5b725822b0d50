"""Child process that loads TensorFlow and prints facts as JSON.

It is separate from the command line because TensorFlow takes seconds to load, writes to the
terminal, and aborts the process on an unsupported processor.
"""

from __future__ import annotations

import json
import os
import sys
import time


def probe() -> dict[str, object]:
    """Return versions, devices, and the number of threads after the import."""
    started = time.perf_counter()
    import tensorflow as tf

    import_s = time.perf_counter() - started
    # As in a zygote: imported, not initialised.
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208 - only the count is wanted
    keras = tf.keras
    return {
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "keras_package": "tf-keras" if keras.__version__.startswith("2.") else "keras",
        "legacy_asked": os.environ.get("TF_USE_LEGACY_KERAS") in {"1", "true", "True"},
        "import_s": round(import_s, 2),
        "threads": threads,
        "devices": [device.name for device in tf.config.list_physical_devices()],
        "onednn": os.environ.get("TF_ENABLE_ONEDNN_OPTS", "1") != "0",
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(probe()) + "\n")
