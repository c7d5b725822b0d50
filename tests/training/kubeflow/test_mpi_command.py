from __future__ import annotations

import contextlib
import shlex
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from timonel.errors import SpecError
from timonel.training.kubeflow.mpi_command import MpiCommand, parse_mpi_command

_ENV = {"A": "1", "B": "2"}


def parsed(command: str | Sequence[str], implementation: str = "OpenMPI") -> MpiCommand:
    words = shlex.split(command) if isinstance(command, str) else command
    return parse_mpi_command(words, implementation, _ENV)


@pytest.mark.parametrize(
    "command",
    [
        "mpirun -np 2 --allow-run-as-root -map-by slot -mca pml ob1 python t.py -np 3",
        "/usr/bin/mpirun --n 2 --mca btl ^openib --hostfile /etc/mpi/hostfile python t.py -np 3",
        "mpiexec -c 2 --bind-to=none --oversubscribe python t.py -np 3",
        "sh -c 'exec mpirun -np 2 python t.py -np 3'",
        "horovodrun -np 2 -H a:1,b:1 --verbose --gloo python t.py -np 3",
        "horovodrun --num-proc=2 --network-interfaces eth0 python t.py -np 3",
        "mpiexec.hydra -n 2 -f /etc/mpi/hosts -l python t.py -np 3",
    ],
)
def test_options_end_where_the_program_begins(command: str) -> None:
    found = parsed(command)
    assert found.program == ("python", "t.py", "-np", "3")
    assert found.processes == 2


def test_ignored_options_are_listed_as_they_are_written() -> None:
    found = parsed("mpirun -np 2 --bind-to=none -mca pml ob1 -x A python t.py")
    assert found.ignored == ("--bind-to=none", "-mca", "pml", "ob1")


@pytest.mark.parametrize(
    ("command", "implementation", "env"),
    [
        ("mpirun -x A -x C=a=b -x D python t.py", "OpenMPI", {"A": "1", "C": "a=b"}),
        ("mpirun -np 2 python t.py", "OpenMPI", {}),
        ("mpirun -x A=0 python t.py", "OpenMPI", {"A": "0"}),
        ("horovodrun -np 2 python t.py", "OpenMPI", _ENV),
        ("mpirun -n 2 -genv C 3 -env D=4 python t.py", "Intel", {**_ENV, "C": "3", "D": "4"}),
        ("mpirun -n 2 -genvlist B,X python t.py", "MPICH", {"B": "2"}),
        ("mpirun -n 2 -genvnone -genv C 3 python t.py", "MPICH", {"C": "3"}),
    ],
)  # fmt: skip
def test_environment_of_the_processes(
    command: str, implementation: str, env: dict[str, str]
) -> None:
    assert parsed(command, implementation).env == env


def test_numbers_of_processes() -> None:
    assert parsed("mpirun python t.py").processes is None
    assert parsed("mpirun -npernode 2 python t.py").per_pod == 2
    assert parsed("mpirun --pernode python t.py").per_pod == 1
    assert parsed("mpirun -np 4 -map-by ppr:2:node python t.py").processes == 4
    assert parsed("mpirun -np 4 --wdir /src python t.py").working_dir == "/src"


@pytest.mark.parametrize(
    ("command", "implementation", "part"),
    [
        ("", "OpenMPI", "the Launcher has no command"),
        ("", "OpenMPI", "write it into the manifest, or name the script as well: timonel train"),
        ("python t.py", "OpenMPI", "it runs 'python t.py': put mpirun before it, or name"),
        ("sh -c 'mpirun -np $N python t.py'", "OpenMPI", "must run mpirun"),
        ("sh -c 'mpirun -np $N python t.py'", "OpenMPI", "write the mpirun command itself into"),
        ("./run.sh", "OpenMPI", "write the mpirun command itself into"),
        ("sh -c 'python t.py'", "OpenMPI", "put mpirun before it"),
        ("mpirun -np 2 --fresh python t.py", "OpenMPI", "option --fresh, which is unknown"),
        ("mpirun -np=2 python t.py", "OpenMPI", "option -np=2"),
        ("mpirun --mca=pml ob1 python t.py", "OpenMPI", "option --mca=pml"),
        ("mpirun --verbose=1 python t.py", "OpenMPI", "option --verbose=1"),
        ("mpirun -genv A 1 python t.py", "OpenMPI", "option -genv"),
        ("mpirun -n 2 -x A python t.py", "Intel", "option -x"),
        ("mpirun -am file python t.py", "OpenMPI", "option -am"),
        ("mpirun -np two python t.py", "OpenMPI", "-np of mpirun must be a number, got 'two'"),
        ("mpirun -np 0 python t.py", "OpenMPI", "must be a number, got '0'"),
        ("mpirun -np 2 -n 3 python t.py", "OpenMPI", "has -n twice"),
        ("mpirun -np", "OpenMPI", "-np of mpirun has no value"),
        ("mpirun -np 2", "OpenMPI", "mpirun has no program: add it after"),
        ("mpirun -np 1 python a.py : -np 1 python b.py", "OpenMPI", "starts several programs"),
        ("mpirun -mca mca_base_env_list A=1 python t.py", "OpenMPI", "has mca_base_env_list"),
        ("mpirun -map-by ppr:2:node python t.py", "OpenMPI", "number of processes of mpirun"),
        ("mpirun -host a,b python t.py", "OpenMPI", "number of processes of mpirun"),
        ("mpirun python t.py", "Intel", "number of processes of mpirun"),
        ("horovodrun -np 2 --min-np 1 python t.py", "OpenMPI", "elastic MPIJobs are not"),
        (
            "horovodrun --max-np=4 python t.py",
            "OpenMPI",
            "'timonel train SCRIPT --workers MIN:MAX'",
        ),
        ("horovodrun --host-discovery-script d.sh python t.py", "OpenMPI", "elastic MPIJobs"),
    ],
)
def test_uncertain_commands_are_refused_with_a_cure(
    command: str, implementation: str, part: str
) -> None:
    with pytest.raises(SpecError) as error:
        parsed(command, implementation)
    assert part in str(error.value)
    assert "\n" not in str(error.value)


_WORD = st.text(st.characters(categories=("L", "N")), min_size=1).filter(lambda word: word != ":")
_OPTION = st.one_of(
    st.sampled_from([("-q",), ("--oversubscribe",), ("-report-bindings",)]),
    st.tuples(st.sampled_from(["--bind-to", "-hostfile", "-rank-by", "--prefix"]), _WORD),
    st.tuples(st.sampled_from(["-mca", "--gmca"]), _WORD.map("m_{}".format), _WORD),
    st.tuples(st.just("-x"), st.tuples(_WORD, _WORD).map("=".join)),
)


@given(st.lists(_OPTION), st.integers(1, 9999), st.lists(st.text()).filter(lambda a: ":" not in a))
def test_known_options_never_reach_the_program(
    options: list[tuple[str, ...]], processes: int, args: list[str]
) -> None:
    words = [word for option in options for word in option]
    program = ("python", "t.py", *args)
    found = parsed(["mpirun", *words, "-np", str(processes), *program])
    assert (found.program, found.processes) == (program, processes)
    exported = [option[1].split("=") for option in options if option[0] == "-x"]
    assert found.env == {name: value for name, value in exported}  # noqa: C416 - pairs of lists


@given(
    st.lists(st.text() | st.sampled_from(["-np", "2", "-x", "A", "-mca", "python", "-genv", ":"])),
    st.sampled_from(["OpenMPI", "Intel", "MPICH"]),
)
def test_any_command_is_parsed_or_refused(words: list[str], implementation: str) -> None:
    with contextlib.suppress(SpecError):
        assert parsed(["mpirun", *words], implementation).program
