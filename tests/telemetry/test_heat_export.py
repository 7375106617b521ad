"""Heat as CSV, as a page, as a picture; and the experts nobody used."""

import csv
import io
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from miractl.errors import MiractlError, UsageError
from miractl.telemetry.experts import ExpertTable
from miractl.telemetry.heat_export import (
    cold,
    export,
    iso_time,
    render_csv,
    render_html,
    render_png,
)
from tests.telemetry.snapshots import expert_table

HEADER = "timestamp,layer,expert,heat,resident,activations,hits,misses,prefetched,prefetch_used"


def test_csv() -> None:
    lines = render_csv(expert_table(layers=(3,))).decode().splitlines()
    when = "2026-11-30T00:53:20.250Z"
    assert lines == [
        HEADER,
        f"{when},3,0,0.750000,1,30,25,5,0,0",
        f"{when},3,1,0.125000,0,10,4,6,3,2",
        f"{when},3,2,0.000000,0,0,0,0,0,0",
        f"{when},3,3,0.000000,0,0,0,0,0,0",
    ]


def test_csv_has_one_row_an_expert_in_order() -> None:
    table = expert_table(layers=(7, 1), experts=9)
    sent = ExpertTable.from_json(table.to_json())
    rows = list(csv.DictReader(io.StringIO(render_csv(sent).decode())))
    keys = [(int(row["layer"]), int(row["expert"])) for row in rows]
    assert keys == [(layer, expert) for layer in (1, 7) for expert in range(9)]


def test_time_is_utc() -> None:
    assert iso_time(0.0) == "1970-01-01T00:00:00.000Z"


class Page(HTMLParser):
    """Counts what a page holds, and what it would load from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.cells: list[dict[str, str | None]] = []
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "td":
            self.cells.append(dict(attrs))
        self.loads += [name for name, _ in attrs if name in ("src", "href")]


def test_page_has_a_cell_an_expert_and_loads_nothing() -> None:
    text = render_html(expert_table()).decode()
    page = Page(text)
    assert len(page.cells) == 8
    assert page.loads == []
    assert not {"script", "link", "img"} & set(page.tags)
    assert "url(" not in text
    assert "@import" not in text
    assert page.cells[1] == {
        "class": "",
        "style": "--heat:0.167;--part:0.333",
        "data-tip": "layer 0, expert 1: heat 0.12, 10 tokens, 40% of 10 lookups hit",
    }
    assert str(page.cells[0]["style"]).startswith("--heat:1.000;")
    assert page.cells[0]["class"] == "resident"
    assert page.cells[2]["class"] == "never right"
    assert "4 of 8 never used" in text
    assert "heat 0 to 0.75, the hottest now" in text


def test_page_escapes_the_models_name() -> None:
    text = render_html(replace(expert_table(), model="<script>x</script>")).decode()
    assert "<script>" not in text
    assert "&lt;script&gt;" in text


@pytest.mark.parametrize(("heat", "shown"), [(0.9, "heat"), (0.001, "tokens")])
def test_page_opens_on_what_there_is_to_see(heat: float, shown: str) -> None:
    table = expert_table()
    rows = tuple(replace(row, heat=heat) for row in table.rows)
    assert f'id="{shown}" checked' in render_html(replace(table, rows=rows)).decode()


def test_page_of_an_empty_table() -> None:
    assert Page(render_html(ExpertTable(0.0, "none", ())).decode()).cells == []


def test_png() -> None:
    pytest.importorskip("matplotlib")
    assert render_png(expert_table()).startswith(b"\x89PNG")


def test_png_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MiractlError) as caught:
        render_png(expert_table())
    assert caught.value.hint == "pip install matplotlib, or use --format html"


def test_export_replaces_a_file_whole(tmp_path: Path) -> None:
    target = tmp_path / "heat.csv"
    target.write_text("old")
    export(expert_table(), str(target), "csv")
    assert target.read_bytes() == render_csv(expert_table())
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["heat.csv"]


def test_a_failed_export_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "heat.csv"
    target.write_text("old")

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(MiractlError, match=r"cannot write .*heat\.csv: No space left on device"):
        export(expert_table(), str(target), "csv")
    assert target.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["heat.csv"]


def test_export_follows_a_link(tmp_path: Path) -> None:
    link = tmp_path / "link.csv"
    link.symlink_to(tmp_path / "real.csv")
    export(expert_table(), str(link), "csv")
    assert link.is_symlink()
    assert (tmp_path / "real.csv").read_bytes() == render_csv(expert_table())


def test_export_does_not_replace_a_device() -> None:
    export(expert_table(), os.devnull, "csv")
    assert not Path(os.devnull).is_file()


def test_export_to_stdout(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    export(expert_table(), "-", "csv")
    assert capfdbinary.readouterr().out == render_csv(expert_table())


def test_export_into_nowhere(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        export(expert_table(), str(tmp_path), "csv")
    with pytest.raises(UsageError, match="there is no folder"):
        export(expert_table(), str(tmp_path / "no" / "heat.csv"), "csv")


def test_cold() -> None:
    layers = cold(expert_table(layers=(0, 3)).rows)
    assert [(row.layer, row.experts, row.of, row.activations) for row in layers] == [
        (0, (2, 3), 4, 40),
        (3, (2, 3), 4, 40),
    ]
    assert layers[0].share == 0.5


Serve = Callable[[dict[str, tuple[int, Any]]], str]
Run = Callable[..., Any]


def test_command_writes_the_file(serve: Serve, miractl: Run, tmp_path: Path) -> None:
    url = serve({"/v1/experts": (200, expert_table().to_json())})
    target = tmp_path / "heat.csv"
    result = miractl("heat", "export", "-o", str(target), "--url", url)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == f"wrote 8 experts of demo to {target}\n"
    assert target.read_bytes() == render_csv(expert_table())


@pytest.mark.parametrize("name", ["heat.html", "HEAT.HTML"])
def test_command_takes_the_format_from_the_name(
    serve: Serve, miractl: Run, tmp_path: Path, name: str
) -> None:
    url = serve({"/v1/experts": (200, expert_table().to_json())})
    assert miractl("heat", "export", "-o", str(tmp_path / name), "--url", url).exit_code == 0
    assert (tmp_path / name).read_bytes() == render_html(expert_table())


def test_command_refuses_a_bad_target_before_it_asks(miractl: Run, tmp_path: Path) -> None:
    result = miractl("heat", "export", "-o", str(tmp_path), "--url", "http://127.0.0.1:9")
    assert result.exit_code == 2
    assert "is a folder" in result.stderr


def test_cold_command(serve: Serve, miractl: Run, golden: Callable[[str, str], None]) -> None:
    url = serve({"/v1/experts": (200, expert_table(experts=9).to_json())})
    result = miractl("heat", "cold", "--url", url)
    assert result.exit_code == 0
    golden("heat-cold.txt", result.stdout)
