"""Files of the page that runs a model in the browser, with two runtimes under Apache 2.0.

``tf.min.js`` is that of ``@tensorflow/tfjs`` 4.22.0. ``litert_core.js`` is ``dist/index.js`` of
``@litertjs/core`` 2.5.3; ``litert_wasm`` is its ``litert_wasm_compat_internal``. All are unchanged.
"""
