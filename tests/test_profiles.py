"""Profiles: the bundled values, and one line for every way in which a file can be wrong."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from miractl import paths
from miractl.errors import UsageError
from miractl.parameters import PARAMETERS, Parameter
from miractl.profiles import list_profiles, load_profile

ARTICLE = {
    "a10": (0.25, 300, 96, 0.93, 3),
    "a100": (0.28, 600, 192, 0.96, 5),
    "l40s": (0.32, 400, 160, 0.94, 4),
    "default": (0.30, 500, 128, 0.95, 4),
}
# Cards of which no source gives values: name, memory in GB, PCIe generation.
HARDWARE_ONLY = {
    "t4": ("Tesla T4", (16,), 3),
    "l4": ("NVIDIA L4", (24,), 4),
    "rtx3090": ("NVIDIA GeForce RTX 3090", (24,), 4),
    "h100": ("NVIDIA H100 80GB HBM3", (80, 94), 5),
    "h200": ("NVIDIA H200", (141,), 5),
}
FIVE = tuple(PARAMETERS)[:5]


def write(folder: Path, text: str) -> str:
    path = folder / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", ARTICLE)
def test_values_of_the_article(name: str) -> None:
    values = load_profile(name).values
    assert tuple(values[parameter] for parameter in FIVE) == ARTICLE[name]


def test_default_profile_is_the_defaults() -> None:
    defaults = {name: parameter.default for name, parameter in PARAMETERS.items()}
    assert load_profile("default").values == defaults


def test_bundled_profiles_are_complete() -> None:
    assert set(list_profiles()) == {"default", "cpu", *ARTICLE, "rtx4090", *HARDWARE_ONLY}
    assert load_profile("rtx4090").values == {"cache_threshold": 0.35}
    for name in list_profiles():
        profile = load_profile(name)
        assert profile.description
        assert all(profile.sources[parameter] for parameter in profile.values), name


@pytest.mark.parametrize("name", HARDWARE_ONLY)
def test_without_a_source_the_defaults_stay(name: str) -> None:
    profile, (gpu, memory, generation) = load_profile(name), HARDWARE_ONLY[name]
    assert profile.values == {}
    assert "default" in profile.description
    assert profile.hardware.matches(gpu)
    assert [size // 10**9 for size in profile.hardware.memory_bytes] == list(memory)
    assert (profile.hardware.pcie_generation, profile.hardware.pcie_lanes) == (generation, 16)


def test_no_card_has_two_profiles() -> None:
    names = [gpu for gpu, _, _ in HARDWARE_ONLY.values()]
    names += ["NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H200 NVL", "NVIDIA A10", "NVIDIA L40S"]
    for gpu in names:
        fitting = [p for p in map(load_profile, list_profiles()) if p.hardware.matches(gpu)]
        assert len(fitting) == 1, gpu


@pytest.mark.parametrize("path", sorted(paths.profiles_dir().glob("*.yaml")), ids=lambda p: p.stem)
def test_every_value_has_a_comment(path: Path) -> None:
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("  ") and not line.strip().startswith("gpu_names"):
            assert " # " in line, line


@pytest.mark.parametrize(
    ("profile", "gpu", "matches"),
    [
        ("a10", "NVIDIA A10", True),
        ("a10", "NVIDIA A100-PCIE-40GB", False),
        ("a10", "NVIDIA A10G", False),
        ("a100", "NVIDIA A100-SXM4-80GB", True),
        ("rtx4090", "NVIDIA GeForce RTX 4090 D", False),
        ("cpu", "", False),
        ("l4", "NVIDIA L40", False),
        ("rtx3090", "NVIDIA GeForce RTX 3090 Ti", False),
        ("h200", "NVIDIA GH200 480GB", False),
    ],
)
def test_hardware_matches_by_the_drivers_name(profile: str, gpu: str, matches: bool) -> None:
    assert load_profile(profile).hardware.matches(gpu) is matches


def test_own_file(tmp_path: Path) -> None:
    text = "parameters:\n  prefetch: off  # too slow here\n  cache_threshold: 1\n"
    profile = load_profile(write(tmp_path, text))
    assert profile.name == "mine"
    assert profile.values == {"prefetch": False, "cache_threshold": 1.0}
    assert profile.sources == {"prefetch": "too slow here", "cache_threshold": ""}


def test_the_layout_of_the_runtime(tmp_path: Path, miractl: Callable[..., Result]) -> None:
    path = write(tmp_path, "runtime:\n  sets: 3  # measured\n  threads: 2\n")
    profile = load_profile(path)
    assert profile.values == {"sets": 3, "threads": 2}
    assert profile.sources == {"sets": "measured", "threads": ""}
    shown = json.loads(miractl("profiles", "show", path, "--json").stdout)
    assert shown["runtime"]["sets"] == {"value": 3, "source": "measured"}
    assert list(shown["parameters"]) == list(PARAMETERS)
    rows = [line.split() for line in miractl("profiles", "show", path).stdout.splitlines()]
    assert ["sets", "3", "measured"] in rows
    assert miractl("profiles", "check", path).stdout.endswith("sets 2 of 14 values, all is well\n")


def test_unknown_name_says_what_there_is() -> None:
    with pytest.raises(UsageError, match=r"no profile 'a11'; did you mean 'a10'\?.*a100") as caught:
        load_profile("a11")
    assert "profiles list" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", None, "empty"),
        ("# nothing\n", None, "empty"),
        ("- a\n- b\n", 1, "name: value"),
        ("just text", 1, "name: value"),
        ("parameters: {a: [1\n", 2, "not valid YAML"),
        ("parameters:\n\tprefetch: true\n", 2, "not valid YAML"),
        ("a: \x07\n", None, "not valid YAML"),
        ("[" * 5000, None, "nested too deeply"),
        ("description: x\ndescription: y\n", 2, "given twice, first in line 1"),
        ("parameters:\n  prefetch: true\n  prefetch: false\n", 3, "given twice"),
        ("paramters:\n  prefetch: true\n", 1, "did you mean 'parameters'"),
        ("parameters: 3\n", 1, "must hold"),
        ("parameters:\n  cache_treshold: 0.3\n", 2, "did you mean 'cache_threshold'"),
        ("parameters:\n  cache_threshold: 1.5\n", 2, "cache_threshold: got 1.5 .* from 0 to 1"),
        ("parameters:\n  cache_threshold: .nan\n", 2, "got nan"),
        ("parameters:\n  cache_threshold: '0.3'\n", 2, "got '0.3' but expected a number"),
        ("parameters:\n  cache_threshold: true\n", 2, "got True but expected a number"),
        ("parameters:\n  cache_threshold:\n", 2, "got None"),
        ("parameters:\n  cache_threshold:\n    deep: 1\n", 2, "expected a number"),
        ("parameters:\n  heat_decay_factor: 0\n", 2, "above 0 and up to 1"),
        ("parameters:\n  max_staged_experts: 2.5\n", 2, "a whole number"),
        ("parameters:\n  max_staged_experts: -1\n", 2, "0 to 1024"),
        ("parameters:\n  resample_interval_tokens: 99\n", 2, "at least 100"),
        ("parameters:\n  prediction_mode: markow\n", 2, "did you mean 'markov'"),
        ("parameters:\n  prefetch: 1\n", 2, "true or false"),
        ("parameters:\n  expert_layer_path: 2026-99-99\n", 2, "not valid YAML"),
        ("runtime:\n  set: 3\n", 2, "did you mean 'sets'"),
        ("runtime:\n  sets: 0\n", 2, "sets: got 0 .* from 1 to 1024"),
        ("runtime:\n  threads: 1.5\n", 2, "a whole number"),
        ("parameters:\n  sets: 3\n", 2, "unknown key 'sets'"),
        ("hardware:\n  memory: [24]\n", 2, "expected a size like 24GB"),
        ("hardware:\n  memory: [24XB]\n", 2, "needs a unit"),
        ("hardware:\n  gpu_names: NVIDIA A10\n", 2, "expected a list"),
        ("description: [a]\n", 1, "expected text"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else str(value),
)
def test_broken_file_gets_one_line_with_its_place(
    tmp_path: Path, text: str, line: int | None, words: str
) -> None:
    path = write(tmp_path, text)
    place = f"{path}:{line}:" if line else f"{path}:"
    with pytest.raises(UsageError, match=words) as caught:
        load_profile(path)
    assert caught.value.message.startswith(place)
    assert "\n" not in caught.value.message


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.yaml: No such file"):
        load_profile(str(tmp_path / "missing.yaml"))
    (tmp_path / "latin.yaml").write_bytes(b"description: caf\xe9\n")
    with pytest.raises(UsageError, match="not UTF-8"):
        load_profile(str(tmp_path / "latin.yaml"))
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(UsageError, match="Is a directory"):
        load_profile(str(tmp_path / "folder.yaml"))


@pytest.mark.parametrize("parameter", PARAMETERS.values(), ids=lambda p: p.name)
def test_parameters_accept_their_default_and_their_bounds(parameter: Parameter) -> None:
    assert parameter.check(parameter.default) == parameter.default
    assert parameter.help.endswith(".")
    for bound in (None if parameter.low_open else parameter.low, parameter.high):
        if bound is not None:
            assert parameter.parse(str(bound)) == bound


@pytest.mark.parametrize("text", ["on", "TRUE", "1", "yes"])
def test_words_for_true(text: str) -> None:
    assert PARAMETERS["prefetch"].parse(text) is True


@pytest.mark.parametrize("text", ["", "2", "maybe"])
def test_other_words_are_no_truth_value(text: str) -> None:
    with pytest.raises(ValueError, match="true or false"):
        PARAMETERS["prefetch"].parse(text)


def test_show_prints_values_and_sources(miractl: Callable[..., Result]) -> None:
    result = miractl("profiles", "show", "a10")
    assert result.exit_code == 0
    rows = [line.split(maxsplit=1) for line in result.stdout.splitlines() if line]
    shown = dict(row for row in rows if len(row) == 2)
    assert shown["cache_threshold"] == "0.25       Mira article 3.2, A10"
    assert shown["prefetch"] == "true       default"
    assert list(PARAMETERS) == [row[0] for row in rows if row[0] in PARAMETERS]


def test_show_as_json(miractl: Callable[..., Result]) -> None:
    shown = json.loads(miractl("profiles", "show", "a100", "--json").stdout)
    assert shown["schema"] == "miractl.profile/1"
    assert shown["hardware"]["memory_bytes"] == [40 * 10**9, 80 * 10**9]
    assert list(shown["parameters"]) == list(PARAMETERS)
    assert shown["parameters"]["max_staged_experts"]["value"] == 5


def test_list_begins_with_default(miractl: Callable[..., Result]) -> None:
    names = [line.split()[0] for line in miractl("profiles", "list").stdout.splitlines()[1:]]
    assert names == list_profiles()
    assert names[0] == "default"
    listed = json.loads(miractl("profiles", "list", "--json").stdout)["profiles"]
    assert [profile["name"] for profile in listed] == names


WRONG = """\
description: [x]
parameters:
  cache_treshold: 0.3
  cache_threshold: 7
  max_staged_experts: 3  # right
hardwar: 1
hardware:
  pcie_lanes: 99
  colour: red
"""
LINES = [
    (1, "description: got ['x'] but expected text"),
    (3, "unknown key 'cache_treshold'; did you mean 'cache_threshold'?"),
    (4, "cache_threshold: got 7 but expected a number from 0 to 1"),
    (6, "unknown key 'hardwar'; did you mean 'hardware'?"),
    (8, "pcie_lanes: got 99 but expected a whole number from 1 to 32"),
    (9, "unknown key 'colour'"),
]


def test_check_says_all_that_is_wrong_in_order(
    tmp_path: Path, miractl: Callable[..., Result]
) -> None:
    path = write(tmp_path, WRONG)
    result = miractl("profiles", "check", path)
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [f"{path}:{line}: {text}" for line, text in LINES]
    found = json.loads(miractl("profiles", "check", path, "--json").stdout)
    assert (found["schema"], len(found["problems"])) == ("miractl.profile-check/1", 6)
    with pytest.raises(UsageError) as caught:
        load_profile(path)
    assert caught.value.message == f"{path}:1: {LINES[0][1]}"
    assert caught.value.hint == f"miractl profiles check {path} shows 5 more"


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("parameters:\n  prefetch: off\n", 0, "sets 1 of 14 values, all is well"),
        ("", 1, "empty"),
        ("a: [\n", 1, "not valid YAML"),
        ("parameters:\n", 0, "sets 0 of 14"),
    ],
)
def test_check_of_other_files(
    tmp_path: Path, miractl: Callable[..., Result], text: str, code: int, words: str
) -> None:
    result = miractl("profiles", "check", write(tmp_path, text))
    assert (result.exit_code, result.stderr) == (code, "")
    assert words in result.stdout


def test_check_of_no_file(miractl: Callable[..., Result]) -> None:
    missing = miractl("profiles", "check", "missing.yaml")
    assert (missing.exit_code, missing.stdout) == (2, "")
    assert missing.stderr == "error: no profile missing.yaml: there is no such file\n"
    assert "did you mean 'a100'" in miractl("profiles", "check", "a1000").stderr


@pytest.mark.parametrize("path", sorted(paths.profiles_dir().glob("*.yaml")), ids=lambda p: p.stem)
def test_the_bundled_profiles_pass(path: Path, miractl: Callable[..., Result]) -> None:
    assert miractl("profiles", "check", str(path)).exit_code == 0
    assert "all is well" in miractl("profiles", "check", path.stem).stdout
