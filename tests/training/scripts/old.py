"""A script of TensorFlow 1's days: its cluster comes as flags, and ps wait for ever."""

import argparse
import json
import os
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--ps_hosts", type=lambda text: text.split(","))
parser.add_argument("--worker_hosts", type=lambda text: text.split(","))
parser.add_argument("--job_name", choices=["ps", "worker"])
parser.add_argument("--task_index", type=int)
parser.add_argument("--job-dir", type=Path)
options = parser.parse_args()

place = options.job_dir / f"{options.job_name}-{options.task_index}.json"
found = {**vars(options), "job_dir": None, "tf_config": json.loads(os.environ["TF_CONFIG"])}
place.write_text(json.dumps(found))
if options.job_name == "ps":
    time.sleep(300)
# Workers of those days wait for their parameter servers too, and the job ends with its chief.
others = [f"worker-{index}.json" for index in range(len(options.worker_hosts))]
deadline = time.monotonic() + 60
while time.monotonic() < deadline and not all(
    (options.job_dir / name).exists() for name in ["ps-0.json", *others]
):
    time.sleep(0.05)
