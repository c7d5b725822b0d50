"""What jobs ask of machines, from options."""

from __future__ import annotations

from typing import Any

import pytest

from timonel.engines import JobSpec, Placement, Resources, RoleSpec, Toleration, Volume
from timonel.errors import SpecError
from timonel.options import with_defaults
from timonel.training.machines import Machines
from timonel.training.train_options import TrainOptions

NONE: dict[str, Any] = {**with_defaults(TrainOptions, {})}
SPEC = JobSpec(
    job_id="job",
    module="x",
    image="manifest:1",
    roles=(
        RoleSpec(name="chief", resources=Resources(cpus=1)),
        RoleSpec(name="ps", replicas=2, placement=Placement(node_selector={"pool": "cpu"})),
    ),
)


def test_without_options_a_job_stays_as_it_is() -> None:
    assert Machines.parse(NONE).complete(SPEC) == SPEC


def test_options_replace_what_a_job_asks_for() -> None:
    options = {
        **NONE,
        "gpus": 2,
        "accelerator": ["example.com/fpga=1"],
        "memory": "4GiB",
        "node_selector": ["cloud.google.com/gke-spot=true"],
        "toleration": ["spot:NoSchedule", "pool=gpu", "any"],
        "priority_class": "low",
        "volume": ["pvc://photos:/photos:ro", "emptydir://:/scratch"],
        "image": "mine:2",
    }
    made = Machines.parse(options).complete(SPEC)
    chief, ps = made.roles
    assert chief.resources == Resources(
        cpus=1, memory_bytes=4 << 30, accelerators={"nvidia.com/gpu": 2, "example.com/fpga": 1}
    )
    assert ps.resources == Resources(memory_bytes=4 << 30)
    assert chief.placement == ps.placement
    assert chief.placement == Placement(
        node_selector={"cloud.google.com/gke-spot": "true"},
        tolerations=(
            Toleration(key="spot", effect="NoSchedule"),
            Toleration(key="pool", value="gpu"),
            Toleration(key="any"),
        ),
        priority_class="low",
    )
    assert made.volumes == (
        Volume(source="pvc://photos", mount_path="/photos", read_only=True),
        Volume(source="emptydir://", mount_path="/scratch"),
    )
    assert made.image == "mine:2"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpus": 0}, "--gpus must be at least 1, got 0"),
        ({"accelerator": ["google.com/tpu"]}, "--accelerator: expected TYPE=COUNT"),
        ({"accelerator": ["google.com/tpu=0"]}, "--accelerator: expected a number of at least 1"),
        ({"cpus": -1.0}, "--cpus and --memory must be more than 0, got -1.0 and None"),
        ({"memory": "much"}, "--memory: "),
        ({"node_selector": ["pool"]}, "--node-selector: expected LABEL=VALUE"),
        ({"toleration": ["a:Never"]}, "--toleration: expected KEY"),
        ({"toleration": ["=x"]}, "--toleration: expected KEY"),
        ({"volume": ["/data:/data"]}, "--volume: expected SOURCE:PATH"),
        ({"volume": ["pvc://data:data"]}, "--volume: expected SOURCE:PATH"),
    ],
)
def test_invalid_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=f"^{message}"):
        Machines.parse({**NONE, **options})
