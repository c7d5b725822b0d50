"""Parse commands of MPI launchers: mpirun, mpiexec and horovodrun. Pure.

The number of words of each option decides where the program begins, so unknown options are refused.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Literal

from timonel.errors import SpecError
from timonel.training.kubeflow.commands import without_shell

Dialect = Literal["OpenMPI", "Hydra", "Horovod"]
"""Whose options are read; Hydra is the launcher of MPICH and Intel MPI."""
_Meaning = Literal[
    "processes", "per-pod", "one-per-pod", "folder", "export", "set", "names", "none",
    "flag", "value", "pair",
]  # fmt: skip
"""``flag``, ``value`` and ``pair`` have no effect, and 0, 1 and 2 words."""
_OPTIONS: Mapping[Dialect, Mapping[_Meaning, str]] = {
    "OpenMPI": {
        "processes": "np n c",
        "per-pod": "npernode N",
        "one-per-pod": "pernode",
        "folder": "wdir wd",
        "export": "x",
        "pair": "mca gmca omca prtemca pmixmca",
        "flag": """
            allow-run-as-root bind-to-core bind-to-none bind-to-socket bycore bynode byslot bysocket
            d debug-daemons debug-daemons-file debug-devel disable-recovery display-allocation
            display-devel-allocation display-devel-map display-map display-topo do-not-resolve
            enable-recovery leave-session-attached nolocal no-oversubscribe nooversubscribe novm
            oversubscribe preload-binary q quiet report-bindings s show-progress tag-output
            timestamp-output use-hwthread-cpus v verbose xml
        """,
        "value": """
            H bind-to cpu-list cpu-set cpus-per-proc cpus-per-rank default-hostfile display host
            hostfile launch-agent machinefile map-by max-restarts output output-filename personality
            prefix rank-by rankfile report-pid report-uri rf slot-list stdin timeout tmpdir
        """,
    },
    "Hydra": {
        "processes": "n np",
        "per-pod": "ppn perhost",
        "folder": "wdir",
        "set": "env genv",
        "names": "envlist genvlist",
        "none": "envnone genvnone",
        "flag": """
            disable-auto-cleanup disable-hostname-propagation disable-x enable-x envall genvall l
            nolocal prepend-rank print-all-exitcodes print-rank-map rr v verbose
        """,
        "value": """
            bind-to binding bootstrap bootstrap-exec bootstrap-exec-args demux errfile-pattern f grr
            host hostfile hosts iface launcher launcher-exec localhost machine machinefile map-by
            membind outfile-pattern path rmk tmpdir topolib usize
        """,
    },
    "Horovod": {
        "processes": "np num-proc",
        "flag": """
            autotune disable-cache gloo hierarchical-allgather hierarchical-allreduce
            log-hide-timestamp log-with-timestamp log-without-timestamp mpi mpi-threads-disable
            no-autotune no-hierarchical-allgather no-hierarchical-allreduce no-mpi-threads-disable
            no-stall-check no-timeline-mark-cycles prefix-output-with-timestamp stall-check tcp
            timeline-mark-cycles verbose
        """,
        "value": """
            H autotune-bayes-opt-max-samples autotune-gaussian-process-noise autotune-log-file
            autotune-steps-per-sample autotune-warmup-samples binding-args cache-capacity
            config-file cycle-time-ms fusion-threshold-mb gloo-timeout-seconds hostfile hosts i
            log-level mpi-args network-interface network-interfaces num-nccl-streams
            output-filename p ssh-identity-file ssh-port stall-check-shutdown-time-seconds
            stall-check-warning-time-seconds start-timeout thread-affinity timeline-filename
        """,
    },
}
_MEANINGS: Mapping[Dialect, Mapping[str, _Meaning]] = {
    dialect: {name: meaning for meaning, names in options.items() for name in names.split()}
    for dialect, options in _OPTIONS.items()
}
_PLACING = frozenset({"H", "host", "hosts", "map-by", "cpus-per-proc", "cpus-per-rank"})
_NO_WORDS = frozenset({"flag", "one-per-pod", "none"})
_ELASTIC = frozenset(
    ["min-np", "min-num-proc", "max-np", "max-num-proc", "host-discovery-script", "slots-per-host"]
)
"""Options of horovodrun for a changing number of processes."""
_NAME_SCRIPT = "or name the script as well: timonel train SCRIPT -f FILE -- ARGS"


@dataclass(frozen=True)
class MpiCommand:
    """A launcher's command."""

    program: tuple[str, ...]  # with its arguments
    processes: int | None = None
    per_pod: int | None = None
    env: Mapping[str, str] = field(default_factory=dict)  # of the processes that the launcher sets
    working_dir: str | None = None
    ignored: tuple[str, ...] = ()  # options without effect


def parse_mpi_command(
    command: Sequence[str], implementation: str, env: Mapping[str, str]
) -> MpiCommand:
    """Parse ``mpirun OPTIONS PROGRAM ARGS``, also within ``sh -c``.

    Variables of the launcher's ``env`` are passed to the processes.
    """
    words = without_shell(list(command))
    dialect = _dialect(words[0] if words else "", implementation)
    if not words:
        raise SpecError(
            "the Launcher has no command, and timonel does not read that of the image",
            hint=f"write it into the manifest, {_NAME_SCRIPT}",
        )
    if dialect is None:
        cure = "write the mpirun command itself into the manifest, without shell syntax"
        if PurePosixPath(words[0]).name.startswith("python"):
            cure = "put mpirun before it"
        raise SpecError(
            "the Launcher must run mpirun, mpiexec or horovodrun, but it runs "
            f"{shlex.join(command)!r}",
            hint=f"{cure}, {_NAME_SCRIPT}",
        )
    return _Reader(words[1:], dialect, env, words[0]).read()


def _dialect(launcher: str, implementation: str) -> Dialect | None:
    name = PurePosixPath(launcher).name
    if name == "horovodrun":
        return "Horovod"
    if name == "mpiexec.hydra":
        return "Hydra"
    if name not in {"mpirun", "mpiexec", "orterun", "prterun"}:
        return None
    return "OpenMPI" if implementation == "OpenMPI" else "Hydra"


@dataclass(eq=False)
class _Reader:
    """Read a launcher's options up to the program. Used once."""

    words: list[str]
    dialect: Dialect
    launcher_env: Mapping[str, str]
    launcher: str
    _position: int = 0
    _counts: dict[_Meaning, int] = field(default_factory=dict)
    _folder: str | None = None
    _set: dict[str, str] = field(default_factory=dict)
    _ignored: list[str] = field(default_factory=list)
    _is_placed: bool = False  # by options that also change the default number of processes

    def __post_init__(self) -> None:
        # Open MPI passes only variables that options name; the others pass all.
        self._passed = set() if self.dialect == "OpenMPI" else set(self.launcher_env)

    def read(self) -> MpiCommand:
        if ":" in self.words:
            raise SpecError(
                f"{self.launcher} starts several programs (':')",
                hint=f"keep one of them, {_NAME_SCRIPT}",
            )
        while self._position < len(self.words) and self.words[self._position].startswith("-"):
            self._option()
        if self._position == len(self.words):
            raise SpecError(
                f"{self.launcher} has no program", hint=f"add it after the options, {_NAME_SCRIPT}"
            )
        if not self._counts and (self.dialect == "Hydra" or self._is_placed):
            raise SpecError(
                f"the number of processes of {self.launcher} is not known",
                hint="add -np with their number",
            )
        passed = {name: self.launcher_env[name] for name in self._passed & {*self.launcher_env}}
        return MpiCommand(
            program=tuple(self.words[self._position :]),
            processes=self._counts.get("processes"),
            per_pod=self._counts.get("per-pod"),
            env={**passed, **self._set},
            working_dir=self._folder,
            ignored=tuple(self._ignored),
        )

    def _option(self) -> None:
        begin = self._position
        option = self._next("")
        name, equals, value = option.removeprefix("-").removeprefix("-").partition("=")
        meaning = _MEANINGS[self.dialect].get(name)
        if self.dialect == "Horovod" and name in _ELASTIC:
            raise SpecError(
                f"elastic MPIJobs are not supported, and {self.launcher} has {option}",
                hint="use 'timonel train SCRIPT --workers MIN:MAX'",
            )
        # Only options of two dashes take their value after '='.
        is_joined = bool(equals)
        if meaning is None or (
            is_joined and (not option.startswith("--") or meaning in _NO_WORDS | {"pair", "set"})
        ):
            raise SpecError(
                f"{self.launcher} has the option {option}, which is unknown or not supported",
                hint=f"remove it, {_NAME_SCRIPT}",
            )
        if meaning not in _NO_WORDS and not is_joined:
            value = self._next(option)
        self._apply(meaning, option, value)
        if name in _PLACING and (name != "map-by" or "ppr" in value):
            self._is_placed = True
        if meaning in {"flag", "value", "pair"}:
            self._ignored += self.words[begin : self._position]

    def _apply(self, meaning: _Meaning, option: str, value: str) -> None:
        if meaning in {"processes", "per-pod", "one-per-pod"}:
            self._count("per-pod" if meaning == "one-per-pod" else meaning, option, value or "1")
        elif meaning == "folder":
            self._folder = value
        elif meaning == "export":
            name, equals, text = value.partition("=")
            if equals:
                self._set[name] = text
            self._passed.add(name)
        elif meaning == "set":
            name, equals, text = value.partition("=")
            self._set[name] = text if equals else self._next(option)
        elif meaning in {"names", "none"}:
            self._passed = set(filter(None, value.split(",")))
        elif meaning == "pair":
            self._next(option)
            if value.startswith("mca_base_env_list"):
                raise SpecError(f"{self.launcher} has {value}", hint="use -x NAME=VALUE instead")

    def _count(self, meaning: _Meaning, option: str, text: str) -> None:
        if not (text.isascii() and text.isdecimal() and 0 < int(text) < 10**6):
            raise SpecError(f"{option} of {self.launcher} must be a number, got '{text}'")
        if self._counts.setdefault(meaning, int(text)) != int(text):
            raise SpecError(f"{self.launcher} has {option} twice", hint="remove one")

    def _next(self, option: str) -> str:
        if self._position == len(self.words):
            raise SpecError(
                f"{option} of {self.launcher} has no value", hint=f"add the value, {_NAME_SCRIPT}"
            )
        self._position += 1
        return self.words[self._position - 1]
