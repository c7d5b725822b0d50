"""What ``--help`` shows of each command: an example, and of long commands the daily options.

``--help-all`` shows the other options as well.
"""

from __future__ import annotations

MOST = 15
"""Number of options up to which ``--help`` shows all."""

_CONVERT = "kind label splits task columns group-by image-size schema seed overwrite runner json"
_LOGS = "timonel logs last worker-0 --follow"
_STOP = "timonel stop last"

DAILY: dict[str, str] = {
    "convert": _CONVERT,
    "data convert": _CONVERT,
    "train": "data set workers devices-per-worker strategy on name detach seed precision evaluator "
    "keep-best early-stopping wandb json",
    "tune": "param metric goal trials parallel data on study algorithm stopping-rule max-steps "
    "max-seconds seed json",
    "serve": "rest-port grpc-port host detach version config batching runtime tls-cert tls-key "
    "api-keys allow-python max-requests",
    "deploy": "name on host port min max target-concurrency target-rps policy tls-cert tls-key "
    "api-keys rate-limit wait json",
    "predict": "version top api-key-file tls-ca batch out keep split format signature batch-size "
    "overwrite json",
}
"""Names of the daily options, by command."""

EXAMPLES: dict[str, str] = {
    "init": "timonel init image digits-project",
    "convert": "timonel convert rows.csv data/rows --label price",
    "train": "timonel train train.py --data data/digits --workers 2 --set lr=0.01",
    "tune": "timonel tune train.py --param 'lr=log(1e-4,1e-1)' --metric val_accuracy --trials 20",
    "export": "timonel export --name digits",
    "serve": "timonel serve digits",
    "deploy": "timonel deploy digits --min 0 --max 4",
    "predict": "timonel predict digits digits/7/0009.png",
    "runs list": "timonel runs --kind train --since 7d",
    "runs show": "timonel runs show last",
    "runs compare": "timonel runs compare baseline wider",
    "runs delete": "timonel runs delete baseline",
    "lineage": "timonel lineage digits/2",
    "jobs list": "timonel jobs",
    "jobs show": "timonel jobs show last",
    "jobs scale": "timonel jobs scale last 4",
    "jobs resume": "timonel jobs resume last",
    "jobs logs": _LOGS,
    "jobs stop": _STOP,
    "jobs delete": "timonel jobs delete train-20261101-093000-7f3a",
    "studies list": "timonel studies",
    "studies show": "timonel studies show last --plot study.html",
    "studies best": "timonel studies best last",
    "studies resume": "timonel studies resume last --trials 40",
    "studies stop": "timonel studies stop last",
    "studies export": "timonel studies export last --name digits",
    "studies delete": "timonel studies delete old-search",
    "models list": "timonel models list digits",
    "models show": "timonel models show digits/2",
    "models add": "timonel models add cats exported/",
    "models check": "timonel models check digits",
    "models convert": "timonel models convert digits --quantize int8",
    "models bench": "timonel models bench digits --plot formats.png",
    "models optimize": "timonel models optimize digits",
    "models alias": "timonel models alias digits champion 7",
    "models delete": "timonel models delete digits/1 digits/2",
    "data convert": "timonel data convert photos/ data/photos",
    "data list": "timonel data",
    "data schema": "timonel data schema rows.csv --label price > schema.yaml",
    "data show": "timonel data show data/digits",
    "data verify": "timonel data verify data/digits",
    "data inspect": "timonel data inspect data/digits --split test",
    "data stats": "timonel data stats data/rows",
    "data report": "timonel data report data/rows --out report.html",
    "data diff": "timonel data diff data/june data/july",
    "data delete": "timonel data delete data/old --dry-run",
    "servers list": "timonel servers",
    "servers stop": "timonel servers stop digits",
    "endpoints list": "timonel endpoints",
    "endpoints show": "timonel endpoints show digits",
    "endpoints scale": "timonel endpoints scale digits --min 1 --max 8",
    "endpoints split": "timonel endpoints split digits 3=90 4=10",
    "endpoints rollback": "timonel endpoints rollback digits",
    "endpoints rollout": "timonel endpoints rollout digits --to 4",
    "endpoints delete": "timonel endpoints delete digits",
    "endpoints start": "timonel endpoints start",
    "endpoints logs": "timonel endpoints logs digits --lines 100",
    "endpoints simulate": "timonel endpoints simulate spike --endpoint digits --out load.svg",
    "keys create": "timonel keys create mobile-app --expires 90d",
    "keys list": "timonel keys",
    "keys revoke": "timonel keys revoke mobile-app",
    "logs": _LOGS,
    "stop": _STOP,
    "image build": "timonel image build registry.example/team/digits:1 --requirements reqs.txt",
    "cluster check": "timonel cluster check --run",
    "cluster rbac": "timonel cluster rbac --user maria > rights.yaml",
    "cluster plan": "timonel cluster plan --on gke --gpu l4:1 --nodes 0:4",
    "prune": "timonel prune --older-than 30d --keep-last 10 --dry-run",
    "doctor": "timonel doctor",
}
"""An example of each command."""
