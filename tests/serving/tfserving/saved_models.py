"""SavedModels as people who use TensorFlow Serving have them, made with TensorFlow and Keras."""

from __future__ import annotations

from pathlib import Path


def half_plus_two(folder: Path) -> None:
    """TensorFlow Serving's own example: y = x / 2 + 2, y2 = x / 2 + 3, as Session exports it.

    ``regress_x_to_y``, ``regress_x_to_y2`` and ``classify_x_to_y`` take Examples with ``x``.
    """
    import tensorflow as tf

    v1 = tf.compat.v1
    with v1.Graph().as_default(), v1.Session() as session:
        a, b = v1.Variable(0.5, name="a"), v1.Variable(2.0, name="b")
        examples = v1.placeholder(tf.string, [None], name="tf_example")
        parsed = v1.io.parse_example(examples, {"x": v1.FixedLenFeature([1], tf.float32)})
        x = tf.identity(parsed["x"], name="x")
        y = tf.add(a * x, b, name="y")
        y2 = tf.add(a * x, 3.0, name="y2")
        info = v1.saved_model.build_tensor_info
        definition = v1.saved_model.build_signature_def

        def of_examples(output, value, method):
            return definition({"inputs": info(examples)}, {output: info(value)}, method)

        signatures = {
            "serving_default": definition(
                {"x": info(x)}, {"y": info(y)}, "tensorflow/serving/predict"
            ),
            "regress_x_to_y": of_examples("outputs", y, "tensorflow/serving/regress"),
            "regress_x_to_y2": of_examples("outputs", y2, "tensorflow/serving/regress"),
            "classify_x_to_y": of_examples("scores", y, "tensorflow/serving/classify"),
        }
        session.run(v1.global_variables_initializer())
        builder = v1.saved_model.Builder(str(folder))
        builder.add_meta_graph_and_variables(session, ["serve"], signature_def_map=signatures)
        builder.save()


def keras(folder: Path) -> None:
    """What ``model.export`` writes: 4x4 images to 3 classes."""
    import keras

    model = keras.Sequential(
        [
            keras.Input((4, 4, 1), name="image"),
            keras.layers.Flatten(),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    model.export(str(folder), verbose=False)


def module(folder: Path) -> None:
    """Several signatures: types, text, and classes from tf.Example."""
    import tensorflow as tf

    types = ("float32", "float64", "int8", "uint8", "int16", "int32", "int64", "uint32", "uint64")
    types += ("bool", "string", "float16", "bfloat16", "uint16", "complex64")
    made = tf.Module()
    signatures = {}

    def add(name, function, **inputs):
        specs = [tf.TensorSpec(shape, dtype, name=key) for key, (shape, dtype) in inputs.items()]
        signatures[name] = tf.function(function, input_signature=specs)
        setattr(made, f"kept_{name}", signatures[name])

    for dtype in types:
        add(
            f"echo_{dtype}",
            lambda x: {"y": tf.identity(x)},
            x=(None, tf.as_dtype(dtype)),
        )
    add(
        "serving_default",
        lambda text, times: {
            "upper": tf.strings.upper(text),
            "raw_bytes": text,
            "length": tf.strings.length(text) * times,
        },
        text=([None], tf.string),
        times=([None], tf.int32),
    )
    add("single", lambda x: {"y": tf.linalg.matvec(x, [1.0, 2.0])}, x=([None, 2], tf.float32))
    add("scalar", lambda n: {"n": n, "two": tf.stack([n, n])}, n=([], tf.int32))
    add("odd", lambda x: {"x": x, "twice": tf.concat([x, x], 0)}, x=([None], tf.float32))

    def classes(inputs):
        parsed = tf.io.parse_example(inputs, {"x": tf.io.FixedLenFeature([2], tf.float32)})
        labels = tf.broadcast_to(tf.constant(["a", "b"]), tf.shape(parsed["x"]))
        return {"classes": labels, "scores": parsed["x"]}

    add("classes", classes, inputs=([None], tf.string))
    tf.saved_model.save(made, str(folder), signatures=signatures)
