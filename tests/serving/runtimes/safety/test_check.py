"""Real SavedModels, checked without running them."""

from __future__ import annotations

import shutil
import time

import pytest

from timonel.serving.protos.messages import saved_model_pb2
from timonel.serving.runtimes.safety.check import check_folder
from timonel.serving.runtimes.tensorflow import TensorFlowRuntime
from timonel.serving.settings import RuntimeSettings
from timonel.serving.status import Code, StatusError

TAGS = ("serve",)


def refused(folder, allowed=()):
    with pytest.raises(StatusError) as caught:
        check_folder(folder, TAGS, allowed)
    assert caught.value.code is Code.PERMISSION_DENIED
    return caught.value.message


@pytest.fixture(scope="module")
def save(tmp_path_factory):
    """Save a function of a string vector as a SavedModel."""
    import tensorflow as tf

    made = {}

    def make(name, run, **kept):
        if name not in made:
            module = tf.Module()
            for key, value in kept.items():
                setattr(module, key, value)
            module.run = tf.function(run, input_signature=[tf.TensorSpec([None], tf.string, "x")])
            folder = tmp_path_factory.mktemp(name) / "1"
            tf.saved_model.save(module, str(folder), signatures={"serving_default": module.run})
            made[name] = folder
        return made[name]

    return make


def test_models_of_this_suite_load(exports):
    for folder in sorted(exports.iterdir()):
        check_folder(folder, TAGS)


def test_python_is_refused(save):
    import tensorflow as tf

    folder = save("python", lambda x: {"y": tf.py_function(lambda t: t, [x], tf.string)})
    message = refused(folder)
    assert "EagerPyFunc runs Python code (node EagerPyFunc of function __inference_" in message
    assert "allow EagerPyFunc (--allow-op" in message
    check_folder(folder, TAGS, {"EagerPyFunc"})


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


@pytest.mark.parametrize("stream", ["file:///tmp/printed", "stderr"])
def test_printing_to_a_file_is_refused(save, stream):
    import tensorflow as tf

    def prints(x):
        tf.print(x, output_stream="file:///tmp/printed" if stream != "stderr" else None)
        return {"y": x}

    def prints_to_stderr(x):
        import sys

        tf.print(x, output_stream=sys.stderr)
        return {"y": x}

    if stream == "stderr":
        check_folder(save("stderr", prints_to_stderr), TAGS)
    else:
        assert "PrintV2 writes files" in refused(save("printed", prints))


def table_of(tf, path):
    lookup = tf.lookup
    return lookup.StaticHashTable(
        lookup.TextFileInitializer(
            path,
            tf.string,
            lookup.TextFileIndex.WHOLE_LINE,
            tf.int64,
            lookup.TextFileIndex.LINE_NUMBER,
        ),
        -1,
    )


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "words.txt"
    path.write_text("a\nb\n")
    return path


@pytest.fixture
def looks_up(save, vocabulary):
    import tensorflow as tf

    table = table_of(tf, str(vocabulary))
    return save("table", lambda x: {"y": table.lookup(x)}, table=table)


def test_a_table_of_an_asset_is_allowed(looks_up):
    import numpy as np

    check_folder(looks_up, TAGS)
    model = TensorFlowRuntime().load(looks_up, RuntimeSettings(safe_loading=True))
    assert model.run("serving_default", {"x": np.array([b"b"], object)})["y"].tolist() == [1]
    model.close()


def changed(folder, target, change):
    shutil.copytree(folder, target)
    path = target / "saved_model.pb"
    model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    change(model.meta_graphs[0])
    path.write_bytes(model.SerializeToString())
    return target


def test_a_table_of_another_file_is_refused(looks_up, tmp_path):
    def forget(graph):
        del graph.asset_file_def[:]

    folder = changed(looks_up, tmp_path / "1", forget)
    assert "reads a file that is no asset of the model" in refused(folder)


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


def test_an_asset_outside_of_the_folder_is_refused(looks_up, tmp_path):
    def leave(graph):
        graph.asset_file_def[0].filename = "../../../etc/passwd"

    folder = changed(looks_up, tmp_path / "1", leave)
    assert "an asset is outside of the model's folder" in refused(folder)
    linked = tmp_path / "2"
    shutil.copytree(looks_up, linked)
    (linked / "assets" / "words.txt").unlink()
    (linked / "assets" / "words.txt").symlink_to("/etc/passwd")
    assert "assets/words.txt is a link out of the model's folder" in refused(linked)


def test_a_client_may_name_no_file(looks_up, tmp_path):
    def offer(graph):
        signature = graph.signature_def["serving_default"]
        signature.inputs["path"].CopyFrom(graph.asset_file_def[0].tensor_info)
        signature.inputs["checkpoint"].name = graph.saver_def.filename_tensor_name

    message = refused(changed(looks_up, tmp_path / "1", offer))
    assert message.count("signature serving_default lets a client name a file") == 2
    assert "--allow-op" not in message


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


def test_what_runs_while_variables_are_restored_is_looked_at(exports, tmp_path):
    def add(graph):
        restore = graph.saver_def.restore_op_name.partition(":")[0]
        node = graph.graph_def.node.add(name="spy", op="ReadFile", input=["saver_filename"])
        assert node.name == "spy"
        next(n for n in graph.graph_def.node if n.name == restore).input.append("^spy")

    message = refused(changed(exports / "versioned-1", tmp_path / "1", add))
    assert "ReadFile reads files (node spy)" in message


def test_another_checkpoint_is_refused(exports, tmp_path):
    """A constant in the place of the name that the server gives."""

    def redirect(graph):
        restore = graph.saver_def.restore_op_name.partition(":")[0]
        node = graph.graph_def.node.add(name="elsewhere", op="Const")
        node.attr["value"].tensor.string_val.append(b"/somewhere/else")
        call = next(n for n in graph.graph_def.node if n.name == restore)
        place = next(i for i, name in enumerate(call.input) if name.startswith("saver_filename"))
        call.input[place] = "elsewhere"

    message = refused(changed(exports / "versioned-1", tmp_path / "1", redirect))
    assert "RestoreV2 reads a file that is not the model's checkpoint" in message


def test_what_nobody_knows_is_refused(exports, tmp_path):
    def add(graph):
        graph.graph_def.library.function[0].node_def.add(name="odd", op="MyCompany>Odd")

    message = refused(changed(exports / "versioned-1", tmp_path / "1", add))
    assert "MyCompany>Odd is not known to be harmless (node odd of function" in message


def test_text_is_read_too(exports, tmp_path):
    from google.protobuf import text_format

    content = (exports / "versioned-1" / "saved_model.pb").read_bytes()
    model = saved_model_pb2.SavedModel.FromString(content)
    model.meta_graphs[0].graph_def.node.add(name="spy", op="ReadFile")
    (tmp_path / "saved_model.pbtxt").write_text(text_format.MessageToString(model))
    assert "ReadFile" in refused(tmp_path)
    (tmp_path / "saved_model.pbtxt").write_text("nonsense {")
    with pytest.raises(StatusError, match="cannot be read"):
        check_folder(tmp_path, TAGS)


@pytest.mark.slow
def test_the_runtime_refuses_before_it_loads(save):
    import tensorflow as tf

    folder = save("python", lambda x: {"y": tf.py_function(lambda t: t, [x], tf.string)})
    with pytest.raises(StatusError, match="Safe loading rejects the model: EagerPyFunc"):
        TensorFlowRuntime().load(folder, RuntimeSettings(safe_loading=True))
    settings = RuntimeSettings(safe_loading=True, allow_ops={"*": ("EagerPyFunc",)})
    TensorFlowRuntime().load(folder, settings).close()
    TensorFlowRuntime().load(folder, RuntimeSettings()).close()


def test_a_model_of_100_mb_costs_little(exports, tmp_path):
    def grow(graph):
        node = graph.graph_def.node.add(name="large", op="Const")
        node.attr["value"].tensor.tensor_content = bytes(100 * 2**20)

    folder = changed(exports / "versioned-1", tmp_path / "1", grow)
    began = time.process_time()
    check_folder(folder, TAGS)
    assert time.process_time() - began < 2
