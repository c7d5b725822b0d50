"""Who writes the shards: this process's threads, for now; a runner takes a `Plan`."""

from timonel.data.runners.local import write_shards
from timonel.data.runners.plan import Outcome, Plan, ShardPlan, plan_shards

__all__ = ["Outcome", "Plan", "ShardPlan", "plan_shards", "write_shards"]
