"""Real SavedModels, checked without running them."""

from __future__ import annotations

import time

import pytest

from tests.models.safety.test_hostile import changed
from timonel.errors import ModelError
from timonel.models.safety.check import check_saved_model


def refused(folder, allowed=()):
    with pytest.raises(ModelError) as caught:
        check_saved_model(folder, allowed)
    return str(caught.value)


@pytest.fixture(scope="module")
def save(tmp_path_factory):
    """Save a function of a string vector as a SavedModel."""
    import tensorflow as tf

    made = {}

    def make(name, run):
        if name not in made:
            module = tf.Module()
            module.run = tf.function(run, input_signature=[tf.TensorSpec([None], tf.string, "x")])
            folder = tmp_path_factory.mktemp(name) / "1"
            tf.saved_model.save(module, str(folder), signatures={"serving_default": module.run})
            made[name] = folder
        return made[name]

    return make


def test_assets_checkpoints_and_unused_savers_are_allowed(model):
    check_saved_model(model)


def test_python_is_refused(save):
    import tensorflow as tf

    folder = save("python", lambda x: {"y": tf.py_function(lambda t: t, [x], tf.string)})
    message = refused(folder)
    assert "EagerPyFunc runs Python code (node EagerPyFunc of function __inference_" in message
    assert message.endswith(
        "). If you trust its author, add --allow-op EagerPyFunc (timonel-model-server: "
        "--allow_ops=EagerPyFunc; timonel deploy: after --)"
    )
    check_saved_model(folder, {"EagerPyFunc"})


def test_files_are_refused_also_in_branches_and_loops(save):
    import tensorflow as tf

    def reads(x):
        y = tf.cond(tf.size(x) > 3, lambda: tf.io.read_file(x[0]), lambda: x[0])

        def body(i, value):
            with tf.control_dependencies([tf.io.write_file("/tmp/x", value)]):
                return i + 1, value

        _, z = tf.while_loop(lambda i, _: i < 2, body, [0, y])
        return {"y": tf.map_fn(tf.io.matching_files, x), "z": z}

    message = refused(save("files", reads))
    for text in ("ReadFile reads files", "WriteFile writes files", "MatchingFiles reads files"):
        assert text in message
    left = refused(save("files", reads), {"ReadFile", "MatchingFiles"})
    assert "ReadFile" not in left
    assert "WriteFile" in left


def test_printing_to_a_file_is_refused(save):
    import sys

    import tensorflow as tf

    def prints(stream):
        def run(x):
            tf.print(x, output_stream=stream)
            return {"y": x}

        return run

    check_saved_model(save("stderr", prints(sys.stderr)))
    assert "PrintV2 writes files" in refused(save("printed", prints("file:///tmp/printed")))


def test_a_table_made_of_a_constant_path_is_refused(save):
    import tensorflow as tf

    def looks(x):
        table = tf.raw_ops.HashTableV2(key_dtype=tf.string, value_dtype=tf.int64)
        made = tf.raw_ops.InitializeTableFromTextFileV2(
            table_handle=table, filename="/etc/passwd", key_index=-2, value_index=-1
        )
        with tf.control_dependencies([made]):
            return {
                "y": tf.raw_ops.LookupTableFindV2(
                    table_handle=table, keys=x, default_value=tf.constant(-1, tf.int64)
                )
            }

    assert "InitializeTableFromTextFileV2 reads a file" in refused(save("passwd", looks))


def test_saving_and_restoring_in_a_signature_is_refused(save):
    import tensorflow as tf

    def copies(x):
        (value,) = tf.raw_ops.RestoreV2(
            prefix="/somewhere/else", tensor_names=["a"], shape_and_slices=[""], dtypes=[tf.float32]
        )
        saved = tf.raw_ops.SaveV2(
            prefix="/tmp/out", tensor_names=["a"], shape_and_slices=[""], tensors=[value]
        )
        with tf.control_dependencies([saved]):
            return {"y": x}

    message = refused(save("copies", copies))
    assert "RestoreV2 reads a file that is not the model's checkpoint" in message
    assert "SaveV2 writes files" in message


def test_a_missing_op_library_is_named(models, tmp_path):
    def use(graph, _):
        graph.graph_def.node.add(name="text", op="CaseFoldUTF8")

    folder = changed(models / "2", tmp_path / "1", use)
    assert refused(folder).endswith(
        "pip install tensorflow_text, and add --op-library tensorflow_text "
        "(timonel-model-server: --op_libraries=tensorflow_text; timonel deploy: after --)"
    )
    check_saved_model(folder, {"CaseFoldUTF8"})


def test_text_is_read_too(models, tmp_path):
    from google.protobuf import text_format

    from timonel.models.protos import saved_model_pb2

    content = (models / "2" / "saved_model.pb").read_bytes()
    saved = saved_model_pb2.SavedModel.FromString(content)
    saved.meta_graphs[0].graph_def.node.add(name="spy", op="ReadFile")
    (tmp_path / "saved_model.pbtxt").write_text(text_format.MessageToString(saved))
    assert "ReadFile" in refused(tmp_path)
    (tmp_path / "saved_model.pbtxt").write_text("nonsense {")
    assert "cannot be read" in refused(tmp_path)


def test_a_model_of_100_mb_costs_little(models, tmp_path):
    def grow(graph, _):
        node = graph.graph_def.node.add(name="large", op="Const")
        node.attr["value"].tensor.tensor_content = bytes(100 * 2**20)

    folder = changed(models / "2", tmp_path / "1", grow)
    began = time.process_time()
    check_saved_model(folder)
    assert time.process_time() - began < 2
