"""Commands that create node pools: parsed again, for all machines of the tables."""

from __future__ import annotations

import shlex
from itertools import product

import pytest
import yaml

from timonel.engines import Placement, Resources
from timonel.engines.kubernetes import node_pools
from timonel.engines.kubernetes.node_pools import (
    PROVIDERS,
    Pool,
    PoolRequest,
    gpu_pool,
    parse_nodes,
    tpu_pool,
)
from timonel.errors import SpecError

_GPUS = [
    (provider, f"{gpu}:{count}", machine)
    for provider, gpus in node_pools._MACHINES.items()
    for gpu, machines in gpus.items()
    for count, machine in machines.items()
]
_SLICES = [
    (f"{version}-{size}", f"{family}-{suffix}", topology)
    for version, (_, family, shapes) in node_pools._TPUS.items()
    for size, (suffix, topology) in shapes.items()
]


def _options(pool: Pool) -> dict[str, str]:
    """Return the options of a command of gcloud or az."""
    words = shlex.split(pool.command)
    pairs = zip(words, [*words[1:], "--"], strict=True)
    return {
        word: "" if value.startswith("--") else value
        for word, value in pairs
        if word.startswith("--")
    }


def _group(pool: Pool) -> dict[str, object]:
    """Return the node group that eksctl reads."""
    first, *lines, last = pool.command.splitlines()
    assert (first, last) == ("eksctl create nodegroup -f - <<'EOF'", "EOF")
    config = yaml.safe_load("\n".join(lines))
    assert config["metadata"] == {"name": "lab", "region": "here"}
    (group,) = config["managedNodeGroups"]
    return group


@pytest.mark.parametrize(("provider", "gpu", "machine"), _GPUS)
@pytest.mark.parametrize("is_spot", [False, True])
def test_gpus(provider: str, gpu: str, machine: str, is_spot: bool) -> None:
    request = PoolRequest(provider, (0, 5), is_spot, None, "lab", "here")
    pool = gpu_pool(request, gpu)
    count = int(gpu.partition(":")[2])
    assert Resources(accelerators=pool.accelerators).accelerators == {"nvidia.com/gpu": count}
    placement = Placement(node_selector=pool.node_selector, tolerations=tuple(pool.tolerations))
    assert placement.node_selector == {"timonel.dev/pool": pool.name}
    taints = {each.key for each in placement.tolerations}
    if provider == "eks":
        group = _group(pool)
        assert (group["instanceTypes"], group["spot"]) == ([machine], is_spot)
        assert (group["minSize"], group["maxSize"]) == (0, 5)
        assert group["labels"] == pool.node_selector
        assert {each["key"] for each in group["taints"]} == taints
        return
    options = _options(pool)
    if provider == "gke":
        assert options["--machine-type"] == machine
        assert f"count={count}," in options["--accelerator"]
        assert (options["--total-min-nodes"], options["--total-max-nodes"]) == ("0", "5")
        assert options["--node-labels"] == f"timonel.dev/pool={pool.name}"
        assert ("--spot" in options) == is_spot
    else:
        assert options["--node-vm-size"] == machine
        assert (options["--min-count"], options["--max-count"]) == ("0", "5")
        assert options["--labels"] == f"timonel.dev/pool={pool.name}"
        assert ("kubernetes.azure.com/scalesetpriority" in taints) == is_spot
        assert (options.get("--priority") == "Spot") == is_spot
        assert len(pool.name) <= 12


@pytest.mark.parametrize(("tpu", "machine", "topology"), _SLICES)
def test_tpus(tpu: str, machine: str, topology: str) -> None:
    chips = eval(topology.replace("x", "*"))
    # Slices of v5p are named by cores.
    assert chips == int(tpu.partition("-")[2]) // (2 if tpu.startswith("v5p") else 1)
    hosts = chips // int(machine[-2])
    pool = tpu_pool(PoolRequest("gke", (0, hosts)), tpu)
    options = _options(pool)
    assert (options["--machine-type"], options["--tpu-topology"]) == (machine, topology)
    assert options["--max-nodes"] == str(hosts)
    assert pool.accelerators["google.com/tpu"] * hosts == chips
    assert pool.node_selector["cloud.google.com/gke-tpu-topology"] == topology


def test_a_slice_of_several_nodes_is_whole_or_absent() -> None:
    with pytest.raises(SpecError, match=r"is 4 nodes.*: give --nodes 0:4"):
        tpu_pool(PoolRequest("gke", (0, 5)), "v6e-16")
    pool = tpu_pool(PoolRequest("gke", (4, 4)), "v6e-16")
    assert _options(pool)["--num-nodes"] == "4"
    assert "--enable-autoscaling" not in pool.command


@pytest.mark.parametrize(
    ("provider", "gpu", "known"),
    [
        ("eks", "a100:2", "a100:8"),
        ("aks", "l4", "t4:1"),
        ("gke", "k80", "h100:8"),
        ("gke", "t4:x", "t4:1"),
    ],
)
def test_unknown_machines_are_refused_with_the_known_ones(
    provider: str, gpu: str, known: str
) -> None:
    with pytest.raises(SpecError, match=f"no machine of {provider} .*use one of .*{known}"):
        gpu_pool(PoolRequest(provider), gpu)


@pytest.mark.parametrize("tpu", ["v2-8", "v5e-7", "v5e", "8"])
def test_unknown_slices_are_refused_with_the_known_ones(tpu: str) -> None:
    with pytest.raises(SpecError, match=r"use one of .*v5e-8.*v5p-16.*v6e-1"):
        tpu_pool(PoolRequest("gke"), tpu)


@pytest.mark.parametrize("provider", ["eks", "aks"])
def test_one_provider_has_tpus(provider: str) -> None:
    with pytest.raises(SpecError, match=f"{provider} has no TPUs: use --on gke"):
        tpu_pool(PoolRequest(provider), "v5e-8")


@pytest.mark.parametrize(
    ("provider", "name"),
    [*product(PROVIDERS, ["A", "1a", "a_b", "a b", "a-", ""]), ("aks", "a-b"), ("aks", "a" * 13)],
)
def test_names_that_providers_refuse(provider: str, name: str) -> None:
    with pytest.raises(SpecError, match="name"):
        gpu_pool(PoolRequest(provider, name=name), "t4")


def test_texts_of_users_are_quoted() -> None:
    pool = gpu_pool(PoolRequest("gke", cluster="$(reboot)"), "t4")
    assert "--cluster '$(reboot)'" in pool.command


@pytest.mark.parametrize(("text", "nodes"), [("0:5", (0, 5)), ("3", (3, 3))])
def test_numbers_of_nodes(text: str, nodes: tuple[int, int]) -> None:
    assert parse_nodes(text) == nodes


@pytest.mark.parametrize("text", ["", "0", "5:1", "a:b", "-1:2", ":", "1:2:3"])
def test_what_is_no_number_of_nodes(text: str) -> None:
    with pytest.raises(SpecError, match="expected MIN:MAX nodes"):
        parse_nodes(text)
