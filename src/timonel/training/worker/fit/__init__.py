"""``fit`` as a job runs it: numbered, watched, checkpointed, resumed."""
