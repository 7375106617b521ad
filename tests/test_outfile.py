"""Files that commands write: what is refused before any work is done."""

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from miractl.errors import UsageError
from miractl.outfile import check_kept


def test_one_file_for_two_things(tmp_path: Path) -> None:
    both = tmp_path / "x.npz"
    with pytest.raises(UsageError, match="both name"):
        check_kept(both, both)
    check_kept(tmp_path / "heat.npz", both)


def test_a_recording_is_new_and_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        check_kept(None, tmp_path)
    with pytest.raises(UsageError, match="is a folder"):
        check_kept(tmp_path, None)
    there = tmp_path / "there"
    there.write_text("")
    with pytest.raises(UsageError, match="is there already"):
        check_kept(None, there)
    check_kept(there, None)  # what was learned is read and written again


def test_heat_does_not_replace_what_it_reads(
    miractl: Callable[..., Result], tmp_path: Path
) -> None:
    trace = tmp_path / "t.npz"
    trace.write_bytes(b"precious")
    result = miractl("heat", "export", "--from", str(trace), "-o", str(trace))
    assert result.exit_code == 2
    assert trace.read_bytes() == b"precious"
