"""What tests of the runtime share."""

from pathlib import Path

import pytest

from miractl.runtime.packing import pack
from tests.runtime.models import make_model


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three layers of eight experts as int4; a record is 8 KiB, an expert in float32 24 KiB."""
    folder = tmp_path_factory.mktemp("models")
    make_model(folder / "source", "Qwen3Moe", moe_intermediate_size=64)
    pack(folder / "source", folder / "int4", "int4")
    return folder / "int4"
