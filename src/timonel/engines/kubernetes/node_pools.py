"""Commands that create node pools with accelerators at the providers. Pure functions.

The names of machines and options follow the providers' documentation; no command was tried there:
cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus and .../how-to/gpus,
docs.aws.amazon.com/eks/latest/eksctl/nodegroups.html, learn.microsoft.com/azure/aks/use-nvidia-gpu.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import yaml  # type: ignore[import-untyped]

from timonel.errors import SpecError

_GPU = "nvidia.com/gpu"
_TPU = "google.com/tpu"
_POOL_LABEL = "timonel.dev/pool"
_AKS_NAME = 12
_AKS_SPOT = "kubernetes.azure.com/scalesetpriority"

# Machine types by GPU and by the number of GPUs of a machine.
_MACHINES: dict[str, dict[str, dict[int, str]]] = {
    "gke": {
        "t4": {1: "n1-standard-8", 2: "n1-standard-16", 4: "n1-standard-32"},
        "l4": {1: "g2-standard-8", 2: "g2-standard-24", 4: "g2-standard-48", 8: "g2-standard-96"},
        "a100": {count: f"a2-highgpu-{count}g" for count in (1, 2, 4, 8)},
        "a100-80gb": {count: f"a2-ultragpu-{count}g" for count in (1, 2, 4, 8)},
        "h100": {count: f"a3-highgpu-{count}g" for count in (1, 2, 4, 8)},
    },
    "eks": {
        "t4": {1: "g4dn.2xlarge", 4: "g4dn.12xlarge", 8: "g4dn.metal"},
        "l4": {1: "g6.2xlarge", 4: "g6.12xlarge", 8: "g6.48xlarge"},
        "a100": {8: "p4d.24xlarge"},
        "a100-80gb": {8: "p4de.24xlarge"},
        "h100": {1: "p5.4xlarge", 8: "p5.48xlarge"},
    },
    "aks": {
        "t4": {1: "Standard_NC8as_T4_v3", 4: "Standard_NC64as_T4_v3"},
        "a100": {8: "Standard_ND96asr_v4"},
        "a100-80gb": {
            1: "Standard_NC24ads_A100_v4",
            2: "Standard_NC48ads_A100_v4",
            4: "Standard_NC96ads_A100_v4",
            8: "Standard_ND96amsr_A100_v4",
        },
        "h100": {
            1: "Standard_NC40ads_H100_v5",
            2: "Standard_NC80adis_H100_v5",
            8: "Standard_ND96isr_H100_v5",
        },
    },
}
PROVIDERS = tuple(_MACHINES)
_GKE_GPUS = {
    "t4": "nvidia-tesla-t4",
    "l4": "nvidia-l4",
    "a100": "nvidia-tesla-a100",
    "a100-80gb": "nvidia-a100-80gb",
    "h100": "nvidia-h100-80gb",
}

_V5E_SHAPES = {
    1: ("1t", "1x1"),
    4: ("4t", "2x2"),
    8: ("8t", "2x4"),
    16: ("4t", "4x4"),
    32: ("4t", "4x8"),
    64: ("4t", "8x8"),
    128: ("4t", "8x16"),
    256: ("4t", "16x16"),
}
# The number in the name of a v5p slice is that of its cores, two for each chip.
_V5P_SHAPES = {
    8: ("4t", "2x2x1"),
    16: ("4t", "2x2x2"),
    32: ("4t", "2x2x4"),
    64: ("4t", "2x4x4"),
    128: ("4t", "4x4x4"),
    256: ("4t", "4x4x8"),
    512: ("4t", "4x8x8"),
}
_TPUS = {
    "v5e": ("tpu-v5-lite-podslice", "ct5lp-hightpu", _V5E_SHAPES),
    "v5p": ("tpu-v5p-slice", "ct5p-hightpu", _V5P_SHAPES),
    "v6e": ("tpu-v6e-slice", "ct6e-standard", _V5E_SHAPES),
}


@dataclass(frozen=True)
class PoolRequest:
    """What all pools of a plan share.

    Attributes:
        provider: ``gke``, ``eks`` or ``aks``.
        nodes: Smallest and largest number of nodes.
        is_spot: Whether the provider may take nodes away, for a lower price.
        name: Name of the pool; None: one that says what is in it.
        cluster: Name of the cluster.
        location: Zone or region of the cluster; at ``aks``, its resource group.
    """

    provider: str
    nodes: tuple[int, int] = (0, 1)
    is_spot: bool = False
    name: str | None = None
    cluster: str = "CLUSTER"
    location: str = "LOCATION"


@dataclass(frozen=True)
class Pool:
    """A node pool, and what tasks need to run there.

    Attributes:
        name: Name of the pool.
        command: Shell command that creates it.
        accelerators: Accelerators of a node, as `timonel.engines.Resources` names them.
        node_selector: Labels of its nodes, for `timonel.engines.Placement`.
        tolerations: Taints of its nodes, likewise.
        remarks: What to know before.
    """

    name: str
    command: str
    accelerators: Mapping[str, int]
    node_selector: Mapping[str, str]
    tolerations: Sequence[Mapping[str, str]]
    remarks: Sequence[str]


def parse_nodes(text: str) -> tuple[int, int]:
    """Parse ``MIN:MAX``, or one number for both."""
    least, colon, most = text.partition(":")
    if not colon:
        most = least
    if not (least.isdecimal() and most.isdecimal() and 0 <= int(least) <= int(most) > 0):
        raise SpecError(f"expected MIN:MAX nodes, got {text!r}", hint="as in --nodes 0:5")
    return int(least), int(most)


def gpu_pool(request: PoolRequest, gpu: str) -> Pool:
    """Return a pool of nodes with GPUs.

    Args:
        gpu: ``TYPE`` or ``TYPE:COUNT``, such as ``a100:2``.
    """
    kind, _, count = gpu.lower().partition(":")
    machines = _MACHINES[request.provider]
    number = int(count) if count.isdecimal() else 0 if count else 1
    machine = machines.get(kind, {}).get(number)
    if machine is None:
        known = [f"{name}:{each}" for name, found in machines.items() for each in found]
        raise SpecError(
            f"no machine of {request.provider} is known with the GPUs {gpu!r}",
            hint=f"use one of {', '.join(known)}",
        )
    name = _name(request, f"{kind}-x{number}")
    tolerations = [{"key": _GPU, "effect": "NoSchedule"}]
    remarks = []
    if request.provider == "gke":
        accelerator = f"type={_GKE_GPUS[kind]},count={number},gpu-driver-version=default"
        options = {"--machine-type": machine, "--accelerator": accelerator}
        command = _gke(request, name, options, per_zone=False)
        if kind == "h100" and number < 8 and not request.is_spot:
            remarks = [f"Google offers {machine} with --spot or --flex-start only."]
    elif request.provider == "eks":
        command = _eks(request, name, machine)
        remarks = ["EKS changes the number of nodes only where Cluster Autoscaler is installed."]
    else:
        command = _aks(request, name, machine)
        remarks = ["AKS needs NVIDIA's device plugin, whose DaemonSet tolerates nvidia.com/gpu."]
        if request.is_spot:
            tolerations.append({"key": _AKS_SPOT, "value": "spot", "effect": "NoSchedule"})
    return Pool(name, command, {_GPU: number}, {_POOL_LABEL: name}, tolerations, remarks)


def tpu_pool(request: PoolRequest, tpu: str) -> Pool:
    """Return a pool of nodes that make up a slice of TPUs, or have one each.

    Args:
        tpu: ``VERSION-SIZE``, such as ``v5e-8``.
    """
    version, _, size = tpu.lower().partition("-")
    kind, family, shapes = _TPUS.get(version, ("", "", {}))
    shape = shapes.get(int(size)) if size.isdecimal() else None
    if shape is None:
        known = [f"{name}-{each}" for name, (_, _, found) in _TPUS.items() for each in found]
        raise SpecError(f"no slice {tpu!r} of TPUs is known", hint=f"use one of {', '.join(known)}")
    if request.provider != "gke":
        raise SpecError(f"{request.provider} has no TPUs", hint="use --on gke")
    suffix, topology = shape
    chips = int(suffix.removesuffix("t"))
    hosts = _product(topology) // chips
    if hosts > 1 and request.nodes not in {(0, hosts), (hosts, hosts)}:
        raise SpecError(
            f"a slice {tpu} is {hosts} nodes, all or none of which exist",
            hint=f"give --nodes 0:{hosts}",
        )
    name = _name(request, tpu.lower())
    options = {"--machine-type": f"{family}-{suffix}", "--tpu-topology": topology}
    selector = {
        "cloud.google.com/gke-tpu-accelerator": kind,
        "cloud.google.com/gke-tpu-topology": topology,
    }
    return Pool(
        name,
        _gke(request, name, options, per_zone=True),
        accelerators={_TPU: chips},
        node_selector={_POOL_LABEL: name, **selector},
        tolerations=[{"key": _TPU, "effect": "NoSchedule"}],
        remarks=[
            "In a regional cluster, add --node-locations with a zone that has these TPUs.",
            *([f"Use {hosts} workers: one for each node of the slice."] if hosts > 1 else []),
        ],
    )


def _name(request: PoolRequest, content: str) -> str:
    if request.name is None:
        name = content + ("-spot" if request.is_spot else "")
        if request.provider == "aks":
            name = name.replace("-spot", "s").replace("-", "")
    else:
        name = request.name
    is_label = name.replace("-", "").isalnum() and name[:1].isalpha() and name == name.lower()
    if request.provider == "aks" and (len(name) > _AKS_NAME or "-" in name or not is_label):
        raise SpecError(
            f"aks does not accept the name {name!r} of a node pool",
            hint=f"choose one of at most {_AKS_NAME} lower-case letters and digits",
        )
    if not is_label or name.endswith("-"):
        raise SpecError(
            f"expected a name of lower-case letters, digits and '-', got {name!r}",
            hint="choose another --name",
        )
    return name


def _gke(request: PoolRequest, name: str, options: Mapping[str, str], *, per_zone: bool) -> str:
    # GKE taints these nodes by itself.
    least, most = request.nodes
    every = {
        "--cluster": request.cluster,
        "--location": request.location,
        **options,
        "--node-labels": f"{_POOL_LABEL}={name}",
        "--num-nodes": str(least),
    }
    flags = ["--spot"] if request.is_spot else []
    if least != most:
        total = "" if per_zone else "total-"
        flags.append("--enable-autoscaling")
        every |= {f"--{total}min-nodes": str(least), f"--{total}max-nodes": str(most)}
        if not per_zone:
            every["--location-policy"] = "ANY"
    return _shell(["gcloud", "container", "node-pools", "create", name], every, flags)


def _eks(request: PoolRequest, name: str, machine: str) -> str:
    least, most = request.nodes
    group = {
        "name": name,
        "instanceTypes": [machine],
        "spot": request.is_spot,
        "minSize": least,
        "maxSize": most,
        "desiredCapacity": least,
        "labels": {_POOL_LABEL: name},
        "taints": [{"key": _GPU, "value": "present", "effect": "NoSchedule"}],
        # So that the autoscaler knows the labels and taints of a group without nodes.
        "propagateASGTags": True,
        "iam": {"withAddonPolicies": {"autoScaler": True}},
    }
    config = {
        "apiVersion": "eksctl.io/v1alpha5",
        "kind": "ClusterConfig",
        "metadata": {"name": request.cluster, "region": request.location},
        "managedNodeGroups": [group],
    }
    text = yaml.safe_dump(config, sort_keys=False, default_flow_style=None)
    return f"eksctl create nodegroup -f - <<'EOF'\n{text}EOF"


def _aks(request: PoolRequest, name: str, machine: str) -> str:
    least, most = request.nodes
    options = {
        "--resource-group": request.location,
        "--cluster-name": request.cluster,
        "--name": name,
        "--node-vm-size": machine,
        "--node-count": str(least),
        "--labels": f"{_POOL_LABEL}={name}",
        "--node-taints": f"{_GPU}=present:NoSchedule",
    }
    flags = []
    if least != most:
        flags.append("--enable-cluster-autoscaler")
        options |= {"--min-count": str(least), "--max-count": str(most)}
    if request.is_spot:
        options |= {"--priority": "Spot", "--eviction-policy": "Delete", "--spot-max-price": "-1"}
    return _shell(["az", "aks", "nodepool", "add"], options, flags)


def _shell(words: Sequence[str], options: Mapping[str, str], flags: Sequence[str]) -> str:
    lines = [shlex.join(words)]
    lines += [f"{name} {shlex.quote(value)}" for name, value in options.items()]
    return " \\\n  ".join([*lines, *flags])


def _product(topology: str) -> int:
    product = 1
    for side in topology.split("x"):
        product *= int(side)
    return product
