"""Models that an attacker changed: each must be refused before TensorFlow sees it."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from timonel.errors import ModelError
from timonel.models.protos import meta_graph_pb2, saved_model_pb2, types_pb2, variable_pb2
from timonel.models.safety.check import check_saved_model, findings_in

NOT_AN_ASSET = "InitializeTableFromTextFileV2 reads a file that is no asset of the model"
NOT_A_CHECKPOINT = "RestoreV2 reads a file that is not the model's checkpoint"
OUTSIDE = "' is no regular file in the model's folder"


def changed(folder, target, change):
    """Copy a model, and change its MetaGraphDef and folder."""
    shutil.copytree(folder, target)
    path = target / "saved_model.pb"
    model = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    change(model.meta_graphs[0], target)
    path.write_bytes(model.SerializeToString())
    return target


def node_of(nodes, **known):
    return next(n for n in nodes if all(getattr(n, key) == value for key, value in known.items()))


def function_with(graph, op):
    """Return the first library function with a node of an operation, and the node."""
    return next((f, n) for f in graph.graph_def.library.function for n in f.node_def if n.op == op)


def spy(nodes, op="ReadFile", **attributes):
    node = nodes.add(name="spy", op=op)
    for name, value in attributes.items():
        if isinstance(value, bytes):
            node.attr[name].s = value
        else:
            node.attr[name].func.name = value
    return node


def new_function(graph, name="hidden", op="ReadFile"):
    function = graph.graph_def.library.function.add()
    function.signature.name = name
    spy(function.node_def, op)
    return function


def served(graph, name="y"):
    return graph.signature_def["serving_default"].outputs[name]


def asset(graph):
    """Return the entry of the only asset, which TensorFlow 1 keeps in a collection."""
    if not graph.asset_file_def:
        kept = graph.collection_def["saved_model_assets"].any_list.value[0]
        kept.Unpack(graph.asset_file_def.add())
    return graph.asset_file_def[0]


def restored(graph):
    """Return the node that TensorFlow 2's exports restore with."""
    return node_of(graph.graph_def.node, name=graph.saver_def.restore_op_name.partition(":")[0])


# Assets.


def asset_above(graph, _):
    asset(graph).filename = "../../../etc/passwd"


def asset_absolute(graph, _):
    asset(graph).filename = "/etc/passwd"


def asset_with_nul(graph, _):
    asset(graph).filename = "words.txt\0"


def asset_missing(graph, _):
    asset(graph).filename = "other.txt"


def asset_chain(_, folder):
    (folder / "assets" / "words.txt").unlink()
    (folder / "assets" / "words.txt").symlink_to("second")
    (folder / "assets" / "second").symlink_to("/etc/passwd")


def asset_loop(_, folder):
    (folder / "assets" / "words.txt").unlink()
    (folder / "assets" / "words.txt").symlink_to("words.txt")


def asset_device(_, folder):
    (folder / "assets" / "words.txt").unlink()
    (folder / "assets" / "words.txt").symlink_to("/dev/zero")


def asset_fifo(_, folder):
    (folder / "assets" / "words.txt").unlink()
    os.mkfifo(folder / "assets" / "words.txt")


def assets_link(graph, folder):
    shutil.rmtree(folder / "assets")
    (folder / "assets").symlink_to("/etc")
    asset(graph).filename = "passwd"


def asset_computed(graph, _):
    name = asset(graph).tensor_info.name.partition(":")[0]
    node_of(graph.graph_def.node, name=name).op = "StringJoin"


def asset_forgotten(graph, _):
    del graph.asset_file_def[:]
    graph.collection_def.pop("saved_model_assets", None)


def asset_undecodable(graph, _):
    del graph.asset_file_def[:]
    kept = graph.collection_def["saved_model_assets"].any_list.value.add()
    kept.type_url, kept.value = "type.googleapis.com/tensorflow.AssetFileDef", b"\xff"


def table_while_answering(graph, _):
    """A constant is fed with the asset's path while loading only, so its value counts here."""
    node = spy(graph.graph_def.node, "InitializeTableFromTextFileV2")
    node.input[:] = ["table", asset(graph).tensor_info.name]
    served(graph).name = "^spy"


def table_of_constant_object(graph, _):
    """TensorFlow 2 passes objects to initializers: here a constant in place of the asset."""
    objects = graph.object_graph_def
    index = next(i for i, node in enumerate(objects.nodes) if node.WhichOneof("kind") == "asset")
    name = asset(graph).tensor_info.name.partition(":")[0]
    objects.nodes[index].constant.operation = name


def table_from(graph, path, name="spy"):
    """Make a table of a file while loading."""
    node = graph.graph_def.node.add(name=name, op="InitializeTableFromTextFileV2")
    node.input[:] = ["table", path]
    graph.collection_def["saved_model_main_op"].node_list.value.append(name)
    return node


def table_in_function(graph, *arguments):
    """Add a function that makes a table of the file in its argument ``path``."""
    function = new_function(graph, op="InitializeTableFromTextFileV2")
    function.node_def[0].input[:] = ["table", "path"]
    for name in arguments:
        function.signature.input_arg.add(name=name)
    return function


def table_behind_a_list(graph, _):
    """A list shifts the arguments after it: the asset is the second of its values."""
    function = table_in_function(graph, "values", "path")
    function.signature.input_arg[0].number_attr = "N"
    path = asset(graph).tensor_info.name
    call = graph.graph_def.node.add(name="call", op="hidden", input=["other", path, "other"])
    call.attr["N"].i = 2
    graph.collection_def["saved_model_main_op"].node_list.value.append("call")


def called_by_default(graph, target):
    """Call a function, or an operation, that only a function's default attribute names."""
    function = new_function(graph, "calling", "StatefulPartitionedCall")
    function.node_def[0].attr["f"].placeholder = "F"
    function.signature.attr.add(name="F", type="func").default_value.func.name = target
    graph.graph_def.node.add(name="call", op="calling", input=["x"])
    served(graph).name = "call:0"


def table_behind_a_default(graph, _):
    table_in_function(graph, "path")
    called_by_default(graph, "hidden")


def operation_behind_a_default(graph, _):
    called_by_default(graph, "ReadFile")


def path_in_variable(graph, **names):
    """Keep the asset's path in a variable, like TensorFlow 2, and make a table of it."""
    nodes = graph.graph_def.node
    for name, shared in names.items():
        nodes.add(name=name, op="VarHandleOp").attr["shared_name"].s = shared
    nodes.add(name="assign", op="AssignVariableOp", input=["handle", asset(graph).tensor_info.name])
    nodes.add(name="read", op="ReadVariableOp", input=["handle", "^assign"])
    table_from(graph, "read")


def another_variable_of_no_name(graph, _):
    """Sessions take the empty name, so both nodes are one variable."""
    path_in_variable(graph, handle=b"", other=b"")
    graph.graph_def.node.add(name="set", op="AssignVariableOp", input=["other", "x"])


def another_variable_in_a_container(graph, _):
    path_in_variable(graph, handle=b"path", other=b"path")
    node_of(graph.graph_def.node, name="other").attr["container"].s = b"localhost"


def handle_from_data(graph, _):
    """A constant may be the handle of any variable."""
    path_in_variable(graph, handle=b"path")
    handle = graph.graph_def.node.add(name="forged", op="Const")
    handle.attr["dtype"].type = types_pb2.DT_RESOURCE
    handle.attr["value"].tensor.resource_handle_val.add(name="path")
    graph.graph_def.node.add(name="set", op="AssignVariableOp", input=["forged", "x"])


def handle_from_client(graph, _):
    node = spy(graph.graph_def.node, "ParseTensor")
    node.attr["out_type"].type = types_pb2.DT_RESOURCE


def handle_in_checkpoint(graph, _):
    """A list of tensors in a checkpoint may hold handles."""
    node = spy(graph.graph_def.node, "RestoreV2")
    node.input[:] = [graph.saver_def.filename_tensor_name, "names", "slices"]
    node.attr["dtypes"].list.type.extend([types_pb2.DT_FLOAT, types_pb2.DT_VARIANT])
    restored(graph).input.append("^spy")


def path_assigned_while_restoring(graph, _):
    """The asset's path is fed while initializing only; before, its constant counts."""
    path_in_variable(graph, handle=b"path")
    restored(graph).input.append("^assign")


# The checkpoint.


def checkpoint_computed(graph, _):
    graph.saver_def.filename_tensor_name = "spy:0"
    spy(graph.graph_def.node, "StringJoin")


def checkpoint_constant(graph, _):
    place = graph.saver_def.filename_tensor_name.partition(":")[0]
    call = restored(graph)
    call.input[:] = ["spy" if name.startswith(place) else name for name in call.input]
    spy(graph.graph_def.node, "Const")


def checkpoint_while_answering(graph, _):
    node = spy(graph.graph_def.node, "RestoreV2")
    node.input[:] = [graph.saver_def.filename_tensor_name, "names", "slices"]
    served(graph).name = "spy:0"


def checkpoint_in_object(graph, _):
    """TensorFlow 2 calls initializers of objects, which no node of the graph reaches."""
    function = new_function(graph, op="RestoreV2")
    function.node_def[0].input[:] = ["names", "names", "names"]
    graph.object_graph_def.concrete_functions["hidden"].SetInParent()


def checkpoint_link(_, folder):
    data = next((folder / "variables").glob("*.index"))
    data.unlink()
    data.symlink_to("/etc/passwd")


def checkpoint_fifo(_, folder):
    data = next((folder / "variables").glob("*.index"))
    data.unlink()
    os.mkfifo(data)


def graph_link(_, folder):
    """An error would quote the file."""
    (folder / "saved_model.pbtxt").symlink_to("/etc/passwd")


def debug_fifo(_, folder):
    (folder / "debug").mkdir()
    os.mkfifo(folder / "debug" / "saved_model_debug_info.pb")


def client_feeds_asset(graph, _):
    info = graph.signature_def["serving_default"].inputs["path"]
    info.CopyFrom(asset(graph).tensor_info)


def client_feeds_checkpoint_in_parts(graph, _):
    info = graph.signature_def["serving_default"].inputs["path"]
    info.coo_sparse.indices_tensor_name = graph.saver_def.filename_tensor_name


# Operations in places that are easy to forget.


def in_restore(graph, _):
    spy(graph.graph_def.node)
    restored(graph).input.append("^spy")


def in_gradient(graph, _):
    new_function(graph)
    gradient = graph.graph_def.library.gradient.add()
    gradient.function_name, gradient.gradient_func = "anything", "hidden"


def in_initializer(graph, _):
    function, _node = function_with(graph, "InitializeTableFromTextFileV2")
    spy(function.node_def)


def in_main_op(graph, _):
    spy(graph.graph_def.node, "WriteFile")
    graph.collection_def["saved_model_main_op"].node_list.value.append("spy")


def saved_by_collection(graph, _):
    spy(graph.graph_def.node, "SaveV2")
    graph.collection_def["table_initializer"].node_list.value.append("spy")


def saved_by_local_variable(graph, _):
    spy(graph.graph_def.node, "SaveV2")
    variable = variable_pb2.VariableDef(initializer_name="spy")
    graph.collection_def["local_variables"].bytes_list.value.append(variable.SerializeToString())


def saved_by_part_of_output(graph, _):
    spy(graph.graph_def.node, "SaveV2")
    served(graph, "z").coo_sparse.dense_shape_tensor_name = "spy:0"


def saved_by_interchangeable(graph, _):
    function = new_function(graph, op="SaveV2")
    function.attr["api_implements"].s = b"anything"


def called_by_name(graph, _):
    spy(graph.graph_def.node, "StatefulPartitionedCall", f="ReadFile")


def called_by_nested_name(graph, _):
    node = spy(graph.graph_def.node, "MapDataset", f="harmless")
    node.attr["f"].func.attr["g"].list.func.add(name="WriteFile")


def printed_by_caller(graph, _):
    node = spy(graph.graph_def.library.function[0].node_def, "PrintV2")
    node.attr["output_stream"].placeholder = "stream"


def same_function_twice(graph, _):
    new_function(graph, op="NoOp")
    new_function(graph, op="Identity")


def same_node_twice(graph, _):
    spy(graph.graph_def.node, "NoOp")
    spy(graph.graph_def.node, "Identity")


def damaged_variable(graph, _):
    graph.collection_def["local_variables"].bytes_list.value.append(b"\xff")


def in_chunks(_, folder):
    (folder / "saved_model.cpb").write_bytes(b"")


BOTH = [
    (asset_above, OUTSIDE),
    (asset_absolute, OUTSIDE),
    (asset_with_nul, OUTSIDE),
    (asset_missing, OUTSIDE),
    (asset_chain, OUTSIDE),
    (asset_loop, OUTSIDE),
    (asset_device, OUTSIDE),
    (asset_fifo, OUTSIDE),
    (assets_link, OUTSIDE),
    (asset_computed, "an asset's path is computed"),
    (asset_forgotten, NOT_AN_ASSET),
    (asset_undecodable, "cannot be read"),
    (table_while_answering, NOT_AN_ASSET),
    (table_behind_a_list, NOT_AN_ASSET),
    (table_behind_a_default, NOT_AN_ASSET),
    (operation_behind_a_default, "ReadFile reads files (function calling)"),
    (another_variable_of_no_name, NOT_AN_ASSET),
    (another_variable_in_a_container, NOT_AN_ASSET),
    (path_assigned_while_restoring, NOT_AN_ASSET),
    (handle_from_data, "Const makes handles of resources from data (node forged)"),
    (handle_from_client, "ParseTensor makes handles of resources from data (node spy)"),
    (handle_in_checkpoint, "RestoreV2 makes handles of resources from data (node spy)"),
    (checkpoint_computed, "the checkpoint's path is computed (node spy)"),
    (checkpoint_while_answering, NOT_A_CHECKPOINT),
    (checkpoint_in_object, NOT_A_CHECKPOINT),
    (checkpoint_link, OUTSIDE),
    (checkpoint_fifo, OUTSIDE),
    (debug_fifo, OUTSIDE),
    (graph_link, OUTSIDE),
    (client_feeds_asset, "signature serving_default lets a client name a file"),
    (client_feeds_checkpoint_in_parts, "signature serving_default lets a client name a file"),
    (in_restore, "ReadFile reads files (node spy)"),
    (in_gradient, "ReadFile reads files (node spy of function hidden)"),
    (in_main_op, "WriteFile writes files (node spy)"),
    (saved_by_collection, "SaveV2 writes files (node spy)"),
    (saved_by_local_variable, "SaveV2 writes files (node spy)"),
    (saved_by_part_of_output, "SaveV2 writes files (node spy)"),
    (saved_by_interchangeable, "SaveV2 writes files (node spy of function hidden)"),
    (called_by_name, "ReadFile reads files (node spy)"),
    (called_by_nested_name, "WriteFile writes files (node spy)"),
    (same_function_twice, "two nodes or functions have one name"),
    (same_node_twice, "two nodes or functions have one name (node spy"),
    (damaged_variable, "cannot be read"),
    (in_chunks, "saved_model.cpb cannot be checked"),
]
OF_TENSORFLOW_2 = [
    (table_of_constant_object, NOT_AN_ASSET),
    (checkpoint_constant, NOT_A_CHECKPOINT),
    (in_initializer, "ReadFile reads files (node spy of function"),
    (printed_by_caller, "PrintV2 writes files"),
]


def refused(folder, reason):
    with pytest.raises(ModelError) as caught:
        check_saved_model(folder)
    assert reason in str(caught.value)


@pytest.mark.parametrize(("change", "reason"), BOTH, ids=lambda each: getattr(each, "__name__", ""))
def test_hostile_models_are_refused(model, tmp_path, change, reason):
    refused(changed(model, tmp_path / "1", change), reason)


@pytest.mark.parametrize(
    ("change", "reason"), OF_TENSORFLOW_2, ids=lambda each: getattr(each, "__name__", "")
)
def test_hostile_models_of_tensorflow_2_are_refused(models, tmp_path, change, reason):
    refused(changed(models / "2", tmp_path / "1", change), reason)


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        ("ReadFile", "reads files"),
        ("ImmutableConst", "reads files"),
        ("XlaCallModule", "runs hidden code"),
        ("DatasetFromGraph", "runs hidden code"),
        ("EagerPyFunc", "runs Python code"),
        ("_Retval", "belongs inside TensorFlow"),
        ("_Recv", "belongs inside TensorFlow"),
        ("QueueDequeueV2", "may wait for ever"),
        ("MyCompany>Odd", "is not known to be harmless"),
        ("CaseFoldUTF8", "is an operation of tensorflow_text"),
    ],
)
def test_operations_are_refused_in_all_graphs(models, tmp_path, op, reason):
    def hide(graph, _):
        new_function(graph, op=op)

    refused(changed(models / "2", tmp_path / "1", hide), f"{op} {reason} (node spy of function")
    # Behind another graph's tags.
    path: Path = tmp_path / "1" / "saved_model.pb"
    hidden = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    model = saved_model_pb2.SavedModel.FromString((models / "2" / path.name).read_bytes())
    hidden.meta_graphs[0].meta_info_def.tags[:] = ["other"]
    model.meta_graphs.append(hidden.meta_graphs[0])
    path.write_bytes(model.SerializeToString())
    refused(tmp_path / "1", f"{op} {reason} (node spy of function")


COUNT = 3_000


def many_tables_of_variables(graph):
    nodes = graph.graph_def.node
    for number in range(COUNT):
        handle = nodes.add(name=f"handle{number}", op="VarHandleOp")
        handle.attr["shared_name"].s = f"path{number}".encode()
        nodes.add(name=f"assign{number}", op="AssignVariableOp", input=[handle.name, "asset"])
        nodes.add(name=f"read{number}", op="ReadVariableOp", input=[handle.name])
        table_from(graph, f"read{number}", f"table{number}")


def many_calls_of_a_large_function(graph):
    function = table_in_function(graph, "path")
    for number in range(COUNT):
        function.node_def.add(name=f"node{number}", op="Identity", input=["path"])
        graph.graph_def.node.add(name=f"call{number}", op="hidden", input=["asset"])
    calls = [f"call{number}" for number in range(COUNT)]
    graph.collection_def["saved_model_main_op"].node_list.value.extend(calls)


def many_tables_in_a_function_with_many_calls(graph):
    many_calls_of_a_large_function(graph)
    nodes = graph.graph_def.library.function[0].node_def
    for number in range(COUNT):
        node = nodes.add(name=f"table{number}", op="InitializeTableFromTextFileV2")
        node.input[:] = ["table", f"node{number}:output:0"]


@pytest.mark.parametrize(
    ("make", "is_refused"),
    [
        (many_tables_of_variables, False),
        (many_calls_of_a_large_function, False),
        (many_tables_in_a_function_with_many_calls, True),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_a_check_ends_soon(make, is_refused):
    """The check holds the interpreter's lock, so its time must not grow with the square."""
    graph = meta_graph_pb2.MetaGraphDef()
    graph.graph_def.node.add(name="asset", op="Const")
    graph.asset_file_def.add(filename="words.txt").tensor_info.name = "asset:0"
    make(graph)
    began = time.process_time()
    assert bool(list(findings_in(graph))) is is_refused
    assert time.process_time() - began < 10


def test_an_assets_path_may_be_in_a_variable(model, tmp_path):
    def keep(graph, _):
        path_in_variable(graph, handle=b"path")

    check_saved_model(changed(model, tmp_path / "1", keep))


@pytest.mark.parametrize("content", [b"\x08\x01nonsense", b"\xff" * 100], ids=["text", "bytes"])
def test_a_damaged_graph_is_refused(tmp_path, content):
    (tmp_path / "saved_model.pb").write_bytes(content)
    refused(tmp_path, "cannot be read")


def test_files_are_named_without_the_folder(models, tmp_path):
    folder = changed(models / "2", tmp_path / "1", asset_chain)
    refused(folder, f"model: 'assets/words.txt{OUTSIDE}: copy the model with 'cp -rL'")


def test_a_graph_that_no_reader_takes_is_refused(tmp_path):
    refused(tmp_path, "there is no saved_model.pb")
    with (tmp_path / "saved_model.pb").open("wb") as file:
        file.truncate(1 << 31)
    refused(tmp_path, "has more than 2 GiB")
    (tmp_path / "saved_model.pb").unlink()
    os.mkfifo(tmp_path / "saved_model.pb")
    refused(tmp_path, f"'saved_model.pb{OUTSIDE}")
