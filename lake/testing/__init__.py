"""Test helpers for projects: build tables from a few events, check the laws on them, and kill commands.

@pytest.fixture(scope="session")
def lakehouse(tmp_path_factory):
    return Lakehouse(PROJECT, tmp_path_factory.mktemp("lake"))

def test_the_promise(lakehouse):
    lakehouse.land_samples().run().check_laws()

def test_a_crash_after_the_log_s_commit_changes_nothing(lakehouse):
    with Commands() as commands:
        lakehouse.land("orders", ORDER)
        assert commands.lake("run", at=lakehouse, kill=Kill("log.after")).landed
        lakehouse.run().check_laws()
"""

from lake.testing.commands import Commands, Done
from lake.testing.fault_injection import POINTS, Kill
from lake.testing.lakehouse import Lakehouse

__all__ = ["POINTS", "Commands", "Done", "Kill", "Lakehouse"]
