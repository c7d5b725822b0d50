"""Contract suites that every implementation of a plug-in interface passes, and fakes.

The programs of jobs and replicas, ``engine_tasks`` and ``service_replica``, need Python only.
"""
