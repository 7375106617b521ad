"""What Prometheus scrapes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from miractl.telemetry.metrics import CONTENT_TYPE, METRICS, Metrics, markdown_table
from miractl.telemetry.snapshot import SWITCH_BUCKETS, Snapshot
from tests.telemetry.snapshots import BASE, changed, on_cuda

DOCS = Path(__file__).parents[2] / "docs" / "metrics.md"


def scrape(snapshot: Snapshot | None) -> dict[str, float]:
    """Samples by name and labels, read back by Prometheus' own parser."""
    text = Metrics(lambda: snapshot).render().decode()
    return {
        f"{sample.name}{sorted(sample.labels.values()) if sample.labels else ''}": sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_whole_scrape(golden: Callable[[str, str], None]) -> None:
    build = {"torch": "2.13.0", "cuda": "13.0"}
    golden("metrics.txt", Metrics(lambda: on_cuda(), build).render().decode())


def test_the_documented_table_is_the_code() -> None:
    assert markdown_table() in DOCS.read_text(encoding="utf-8"), (
        "replace the table in docs/metrics.md by: "
        "python -c 'from miractl.telemetry.metrics import *; print(markdown_table())'"
    )


def test_every_documented_name_is_scraped() -> None:
    text = Metrics(on_cuda).render().decode()
    documented = [line.split("`")[1] for line in markdown_table().splitlines()[2:]]
    scraped = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert documented == scraped


def test_hits_and_misses_are_all_lookups() -> None:
    samples = scrape(BASE)
    hits, misses = samples["miractl_expert_hits_total"], samples["miractl_expert_misses_total"]
    assert hits + misses == samples["miractl_expert_lookups_total"] == 4000


def test_one_snapshot_a_scrape() -> None:
    asked = []

    def source() -> Snapshot:
        asked.append(1)
        return BASE

    Metrics(source).render()
    assert len(asked) == 1


def test_what_is_unknown_has_no_sample() -> None:
    samples = scrape(changed(BASE, transfer={"peak_bytes_per_second": None}))
    assert not [name for name in samples if "cuda" in name or "peak" in name]
    assert samples["miractl_transfer_bytes_total['disk']"] == 1580 * 2**20
    assert scrape(on_cuda())["miractl_cuda_inactive_split_bytes"] == 50 * 2**20


def test_the_histogram_is_cumulative() -> None:
    samples = scrape(BASE)
    name = "miractl_expert_switch_seconds"
    in_order = [samples[f"{name}_bucket['{bound}']"] for bound in (*SWITCH_BUCKETS, "+Inf")]
    assert in_order[:8] == [0, 0, 4, 34, 84, 98, 100, 100]
    assert in_order[-1] == samples[f"{name}_count"] == 100
    assert samples[f"{name}_sum"] == pytest.approx(0.09)


def test_while_loading_only_readiness_build_and_kernels() -> None:
    samples = scrape(None)
    assert samples.pop("miractl_ready") == 0
    assert samples.pop("miractl_native_available") in (0, 1)
    assert [name.partition("[")[0] for name in samples] == ["miractl_build_info"]


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "模型 %", "caf\udce9"])
def test_no_model_name_breaks_a_scrape(name: str) -> None:
    samples = scrape(changed(BASE, model={"id": name}))
    assert sum(key.startswith("miractl_model_info") for key in samples) == 1
    assert samples["miractl_ready"] == 1


def test_no_expert_is_a_label() -> None:
    assert {metric.label for metric in METRICS} == {
        *(None, "source", "profile", "model"),
        *("format", "kernels"),
    }


def test_names_follow_the_rules() -> None:
    for metric in METRICS:
        assert metric.name.startswith("miractl_")
        assert metric.name.replace("_", "").isalnum()
        assert metric.help


def test_content_type() -> None:
    assert CONTENT_TYPE.startswith("text/plain; version=0.0.4")
