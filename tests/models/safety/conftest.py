"""Real SavedModels, made once: TensorFlow takes seconds to import."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Folder of two models of a vocabulary and a variable, of TensorFlow 1 and 2."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "words.txt").write_text("a\nb\n")
    _save_2(folder / "2", str(folder / "words.txt"))
    _save_1(folder / "1", str(folder / "words.txt"))
    return folder


@pytest.fixture(params=["1", "2"])
def model(models, request):
    """One of `models`."""
    return models / request.param


def table_of(tf, path):
    lookup = tf.lookup
    index = lookup.TextFileIndex
    initializer = lookup.TextFileInitializer(
        path, tf.string, index.WHOLE_LINE, tf.int64, index.LINE_NUMBER
    )
    return lookup.StaticHashTable(initializer, -1)


def _save_2(folder, words):
    import tensorflow as tf

    module = tf.Module()
    module.table, module.scale = table_of(tf, words), tf.Variable(2.0)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "x")])
    def run(x):
        return {"y": tf.cast(module.table.lookup(x), tf.float32) * module.scale}

    tf.saved_model.save(module, str(folder), signatures={"serving_default": run})


def _save_1(folder, words):
    """Save as TensorFlow 1 does, with a second saver in the graph."""
    import tensorflow as tf

    v1 = tf.compat.v1
    with tf.Graph().as_default() as graph, v1.Session() as session:
        words = tf.constant(words)
        graph.add_to_collection(v1.GraphKeys.ASSET_FILEPATHS, words)
        x = v1.placeholder(tf.string, [None], name="x")
        scale = v1.get_variable("scale", initializer=2.0, use_resource=False)
        y = tf.cast(table_of(tf, words).lookup(x), tf.float32) * scale
        main = v1.tables_initializer()
        session.run([v1.global_variables_initializer(), main])
        v1.train.Saver()
        predict = v1.saved_model.predict_signature_def({"x": x}, {"y": y})
        builder = v1.saved_model.builder.SavedModelBuilder(str(folder))
        builder.add_meta_graph_and_variables(
            session,
            ["serve"],
            {"serving_default": predict},
            assets_collection=v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
            main_op=main,
        )
        builder.save()
