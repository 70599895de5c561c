"""Rows on their way between this process and Spark."""

from __future__ import annotations

import gc

from py4j.finalizer import ThreadSafeFinalizer
from pyspark.sql import SparkSession

from lake.session import HANDED, hand_over, let_go


def test_what_python_needs_no_more_goes_from_the_jvm_once_much_is_handed_to_it(spark: SparkSession) -> None:
    let_go()
    held = len(ThreadSafeFinalizer.finalizers)
    gc.disable()
    try:
        for _ in range(3):
            assert spark.range(10).count() == 10
        assert len(ThreadSafeFinalizer.finalizers) > held
        hand_over(1)
        assert len(ThreadSafeFinalizer.finalizers) > held
        hand_over(HANDED)
        assert len(ThreadSafeFinalizer.finalizers) <= held
    finally:
        gc.enable()
