"""Libraries of trunks, without which a test is skipped."""

import pytest


@pytest.fixture
def timm():
    return pytest.importorskip("timm", reason="the extra timm is not installed")


@pytest.fixture
def transformers():
    return pytest.importorskip("transformers", reason="the extra hf is not installed")
