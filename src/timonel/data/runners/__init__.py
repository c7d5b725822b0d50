"""Runners that write a `Plan`'s shards; for now, threads of this process."""

from timonel.data.runners.local import write_shards
from timonel.data.runners.plan import Outcome, Plan, ShardPlan, plan_shards

__all__ = ["Outcome", "Plan", "ShardPlan", "plan_shards", "write_shards"]
