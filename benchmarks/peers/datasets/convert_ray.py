"""Convert label folders with Ray Data: read the files, write TFRecords.

usage: convert_ray.py SOURCE DESTINATION
"""

import os
import sys
from pathlib import Path

os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] = "1"
import ray

source, destination = Path(sys.argv[1]), sys.argv[2]
names = {folder.name: number for number, folder in enumerate(sorted(source.iterdir()))}


def labelled(row):
    return {"image": row["bytes"], "label": names[Path(row["path"]).parent.name]}


ray.init(num_cpus=len(os.sched_getaffinity(0)), include_dashboard=False, log_to_driver=False)
files = ray.data.read_binary_files(str(source), include_paths=True)
files.map(labelled).write_tfrecords(destination)
