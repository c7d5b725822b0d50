"""Allowed operations of a served model, and reasons to refuse others. Pure.

An operation is harmless if it only computes on its inputs, or keeps state within its own process:
``harmless.txt`` lists these by name, generated from TensorFlow's registry by `harmless_of`. All
other operations are refused, so that no unreviewed kernel runs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from importlib import resources

_UNKNOWN = "is not known to be harmless"

_REFUSED: tuple[tuple[str, str], ...] = (
    (r"(Eager)?PyFunc(Stateless)?", "runs Python code"),
    (r"Abort", "ends the process"),
    (r"(Experimental)?Sleep\w*", "blocks a thread"),
    # A graph, or code, in a string or elsewhere out of sight of this check.
    (
        r"DatasetFromGraph|XlaCallModule|MlirPassthroughOp|RemoteCall|\w*TPU\w*|Tpu\w+|TpuHandle\w+",
        "runs hidden code",
    ),
    (r"Xla\w+|DTensor\w+|CopyToMesh\w*", "runs code made for other devices"),
    (r"ReadFile|MatchingFiles|ImmutableConst|\w*Reader\w*|RecordInput|Skipgram", "reads files"),
    (r"(Experimental)?(TextLine|FixedLengthRecord|TFRecord|CSV|LMDB|Sql)Dataset\w*", "reads files"),
    (r"(Experimental)?MatchingFilesDataset|LoadDataset|ListSnapshotChunksDataset", "reads files"),
    (r"GenerateVocabRemapping|LoadAndRemapMatrix|InitializeTableFromTextFile\w*", "reads files"),
    (r"Restore\w*|FixedUnigramCandidateSampler|DecodeProtoV2|EncodeProto", "reads files"),
    (r"WriteFile|Save\w*|MergeV2Checkpoints|Sharded\w+|DumpTensor|DistributedSave", "writes files"),
    (r"(Anonymous|Delete|Dummy)MemoryCache|CacheDataset\w*|Snapshot\w+", "reads and writes files"),
    (r"(Experimental)?DatasetToTFRecord|PrintV2|CalibrationStatisticsSaver", "writes files"),
    (r"\w*SummaryWriter|CreateSummary\w+|Write\w+Summary|WriteSummary|ImportEvent", "writes files"),
    (r"Debug(Identity\w*|NanCount|NumericSummary)|Copy(Host)?", "writes files or uses the network"),
    (r"FileSystemSetConfiguration", "changes how files are reached"),
    (r"Rpc\w+|DeleteRpc\w+|DataService\w+|RegisterDataset\w*", "uses the network"),
    (r"Collective\w+|Nccl\w+|Send|Recv|HostSend|HostRecv|WorkerHeartbeat", "uses the network"),
    (r"Infeed\w+|Outfeed\w+", "waits for a device"),
    (r"\w*Queue\w*|\w*Barrier\w*|(Ordered)?Map(Stage|Unstage|Peek|Clear)\w*", "may wait for ever"),
    (r"Stage\w*|Unstage|\w*Mutex\w*", "may wait for ever"),
    # Test kernels of the framework.
    (r"\w+>\w+|Test\w+|(Int|Float|Two|Five|List|Ref|Reserved)\w*(Input|Output)s?", _UNKNOWN),
    (r"Old|None|Kernel\w+|Stub\w+|GraphDefVersion", _UNKNOWN),
    (r"_\w+", "belongs inside TensorFlow"),
)

# Operations that keep state, all in the process's own memory.
_STATEFUL = r"""
AllCandidateSampler AddSparseToTensorsMap AddManySparseToTensorsMap TakeManySparseFromTensorsMap
AnonymousHashTable AnonymousMutable\w+ AnonymousIterator\w* AnonymousSeedGenerator
AnonymousRandomSeedGenerator Assert Assign(Add|Sub)?VariableOp Boosted\w+ IsBoosted\w+ Case
CheckNumerics(V2)? CudnnRNN\w* DatasetToSingleElement DeepCopy Delete(Iterator|SeedGenerator)
DeleteRandomSeedGenerator DestroyResourceOp DisableCopyOnRead Dummy(SeedGenerator|IterationCounter)
Empty GeneratorDataset (Experimental)?GroupByReducerDataset (Experimental)?RandomDataset(V2)?
GuaranteeConst HashTable(V2)? If Iterator(V2|GetNext\w*)? InitializeTable(V2|FromDataset)
IsResourceHandleRefCounting LearnedUnigramCandidateSampler ListDataset LogUniformCandidateSampler
LookupTable\w+ MakeIterator Multinomial Mutable\w*HashTable\w* NonDeterministicInts OneShotIterator
ParameterizedTruncatedNormal Print Random\w+ RangeDataset ReadVariableOp ReduceDataset
Resource(Apply|Gather|Scatter|SparseApply|StridedSlice)\w* ResourceCountUpTo RiscWhile Rng\w+
SampleDistortedBoundingBox(V2)? Shuffle(AndRepeat)?Dataset\w+ SparseTensorSliceDataset Stack\w*
StatefulPartitionedCall Stateful(Random|Standard|Truncated|Uniform)\w* StatelessRandomGetAlg
TemporaryVariable Tensor(Slice)?Dataset TensorArray\w* ThreadUnsafeUnigramCandidateSampler
Timestamp TruncatedNormal UniformCandidateSampler VarHandleOp VarIsInitializedOp Variable(V2|Shape)?
While
"""

# Operations of op libraries, and the package to install.
_PACKAGES: tuple[tuple[str, str], ...] = (
    (r"TFText>\w+|CaseFoldUTF8|ConstrainedSequence|FastBertNormalize", "tensorflow_text"),
    (r"FindSourceOffsets|MaxSpanningTree|PhraseTokenize|RegexSplit\w+|RougeL", "tensorflow_text"),
    (r"(Fast)?Wordpiece\w+|Whitespace\w+|UnicodeScript\w+|TokenizerFromLogits", "tensorflow_text"),
    (r"NormalizeUTF8\w*|Sentence(piece|Fragments)\w*|SplitMergeTokenize\w+", "tensorflow_text"),
    (r"SimpleML\w+", "tensorflow_decision_forests"),
    (r"Addons>\w+", "tensorflow_addons"),
    (r"IO>\w+", "tensorflow_io"),
    (r"TFRA>\w+", "tensorflow_recommenders_addons"),
)

_REFUSING = tuple((re.compile(pattern), reason) for pattern, reason in _REFUSED)
_OWNERS = tuple((re.compile(pattern), package) for pattern, package in _PACKAGES)
_KEEPING = re.compile("|".join(_STATEFUL.split()))


def reason_against(operation: str) -> str | None:
    """Return the reason to refuse an operation; None if it is harmless."""
    if operation in _harmless():
        return None
    if package := package_of(operation):
        return f"is an operation of {package}"
    return _refusal(operation) or _UNKNOWN


def package_of(operation: str) -> str | None:
    """Return the package of an op library that has the operation, if it is known."""
    return next((name for pattern, name in _OWNERS if pattern.fullmatch(operation)), None)


def library_hint(packages: Iterable[str]) -> str:
    """Return how to load op libraries."""
    names = sorted(packages)
    options = " ".join(f"--op-library {name}" for name in names)
    return (
        f"pip install {' '.join(names)}, and add {options} "
        f"(timonel-model-server: --op_libraries={','.join(names)}; timonel deploy: after --)"
    )


def harmless_of(registry: Iterable[tuple[str, bool]]) -> list[str]:
    """Return the harmless operations of a registry, sorted.

    Args:
        registry: Each operation's name, and whether TensorFlow marks it as stateful.
    """
    return sorted(
        name
        for name, stateful in registry
        if _refusal(name) is None and (not stateful or _KEEPING.fullmatch(name))
    )


@functools.cache
def _harmless() -> frozenset[str]:
    text = resources.files(__package__).joinpath("harmless.txt").read_text(encoding="utf-8")
    return frozenset(line for line in text.splitlines() if line and not line.startswith("#"))


def _refusal(operation: str) -> str | None:
    return next((why for pattern, why in _REFUSING if pattern.fullmatch(operation)), None)
