"""Stores on S3 whose requests all go through s3fs, as where obstore is not installed, with everyday troubles."""

from __future__ import annotations

from tests.conformance import test_stores


class TestHeapOnTroubledS3ThroughS3fs(test_stores.TestHeapOnTroubledS3):
    native = False
