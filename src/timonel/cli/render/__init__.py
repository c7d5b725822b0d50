"""What results look like: plain functions of values, used by the commands, tested without one."""
