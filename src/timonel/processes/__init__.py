"""Processes of jobs and servers: start, identify, observe, fork from a zygote, kill."""
