"""Test helpers for projects: tables made from a few events, a check of the laws on them, and killed commands."""

from lake.testing.commands import Commands, Done
from lake.testing.fault_injection import POINTS, Kill
from lake.testing.lakehouse import Lakehouse

__all__ = ["POINTS", "Commands", "Done", "Kill", "Lakehouse"]
