"""Verify, inspect and compare datasets, without TensorFlow."""

from timonel.data.inspection.browsing import Inspection, Record, inspect
from timonel.data.inspection.comparison import Comparison, diff
from timonel.data.inspection.profile import Profile, stats
from timonel.data.inspection.report_page import DatasetReport, report
from timonel.data.inspection.verification import Problem, Verification, verify

__all__ = [
    "Comparison",
    "DatasetReport",
    "Inspection",
    "Problem",
    "Profile",
    "Record",
    "Verification",
    "diff",
    "inspect",
    "report",
    "stats",
    "verify",
]
