"""``perfmodel hardware``: the profiles that there are, and every value of one."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from perfmodel.base.fields import facts_of
from perfmodel.hwprofiles import list_hardware, list_meshes, load_hardware, load_mesh
from perfmodel.software.engine import ENGINES, IDENTITY, Engine, load_engine
from perfmodel.software.framework import FRAMEWORKS, OF_MEASURED_RUNS, TITLES, Framework
from perfmodel.software.framework import IDENTITY as RELEASE
from tests.cli.running import assert_one_line, document, run


def test_hardware_list_names_every_profile() -> None:
    found = document("hardware", "list")
    names = [entry["name"] for entry in found["hardware"]]
    assert names == list_hardware()
    assert [entry["name"] for entry in found["meshes"]] == list_meshes()
    assert {"wse-2": 850_000}.items() <= {
        entry["name"]: entry["cores"] for entry in found["meshes"]
    }.items()
    text = run("hardware", "list").stdout
    assert all(name in text for name in (*names, *list_meshes()))
    assert "nvidia-hopper" not in text
    assert "nvidia-hopper" in run("hardware", "list", "--all").stdout
    assert "nvidia-hopper" in document("hardware", "list", "--all")["parts"]


def test_hardware_show_gives_every_value_by_its_path() -> None:
    text = run("hardware", "show", "H100-80GB-SXM").stdout
    assert text.startswith("dgx-h100: ")
    for part in ("device.peak_flops.bf16", "9.894e+14", "FLOP/s", "system.network.1.bandwidth"):
        assert part in text
    found = document("hardware", "show", "dgx-h100", "--set", "device.tdp=500")
    assert found["device"]["tdp"] == 500
    assert found["calibration"]["gemm"]
    assert found["system"]["network"][0]["bandwidth"] == (
        load_hardware("dgx-h100").system.network[0].bandwidth
    )


def test_a_mesh_is_shown_with_its_sources(tmp_path: Path) -> None:
    text = run("hardware", "show", "CS-2").stdout
    assert text.startswith("wse-2: Cerebras WSE-2")
    for part in ("mesh.link_width", "B/cycle", "constants.stage_latency", "Luczynski"):
        assert part in text
    found = document("hardware", "show", "galaxy", "--set", "mesh.clock=9e8")
    assert found["mesh"]["clock"] == 9e8
    assert found["mesh"]["chip_rows"] == load_mesh("galaxy").chip_grid[0]
    own = tmp_path / "own.toml"
    own.write_text('extends = "wse-2"\n[mesh]\nclock = 1e9\n')
    assert document("hardware", "show", str(own))["mesh"]["clock"] == 1e9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("wse-2", "--set", "mesh.clok=1"), "no value 'mesh.clok'"),
        (("wse-2", "--set", "mesh.clock=-1"), "above 0"),
        (("wse-9",), "did you mean wse-"),
    ],
)
def test_what_a_mesh_cannot_be_is_refused(arguments: tuple[str, ...], message: str) -> None:
    assert_one_line(run("hardware", "show", *arguments), message)


ONE = shlex.split(
    "--model llama-3.1-8b --hardware dgx-h100 --devices 8 --tp 2 --seq-len 4096 --global-batch 16"
)


def test_the_list_says_what_each_preset_is() -> None:
    shown = run("software", "list").stdout
    listed = {item["name"]: item["title"] for item in document("software", "list")["software"]}
    assert listed == dict(TITLES)
    assert list(listed) == list(FRAMEWORKS)
    for name, title in TITLES.items():
        assert name in shown
        assert title in shown


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_show_has_every_value_with_its_source(name: str) -> None:
    shown = run("software", "show", name).stdout
    values = document("software", "show", name)["values"]
    assert set(values) == set(facts_of(Framework))
    for key, value in values.items():
        assert value["value"] == getattr(FRAMEWORKS[name], key)
        assert value["source"] or not value["value"]
        assert (f"software.{key}" in shown) == value["settable"]
        assert key in shown


def test_the_list_has_every_engine_with_its_first_release() -> None:
    shown = run("software", "list").stdout
    engines = {item["name"]: item for item in document("software", "list")["engines"]}
    assert list(engines) == list(ENGINES)
    for name, item in engines.items():
        assert (item["engine"], item["since"]) == (ENGINES[name].engine, ENGINES[name].since)
        assert item["title"] in shown


@pytest.mark.parametrize("name", ENGINES)
def test_show_has_every_fact_of_an_engine_with_its_source(name: str) -> None:
    release = f"{ENGINES[name].engine}-{ENGINES[name].since}"  # without: the newest
    shown = run("software", "show", release).stdout
    values = document("software", "show", release)["values"]
    assert set(values) == set(facts_of(Engine))
    for key, value in values.items():
        assert value["value"] == json.loads(json.dumps(getattr(ENGINES[name], key)))
        assert value["source"]
        assert (f"software.{key}" in shown) == value["settable"] == (key not in IDENTITY)


def test_a_release_shows_what_holds_for_it_and_facts_can_be_set() -> None:
    found = document("software", "show", "vllm-0.11", "--set", "software.pass_host=0.5")
    assert found["name"] == f"{load_engine('vllm', '0.11').name}[pass_host=0.5]"
    assert found["values"]["pass_host"].items() >= {"value": 0.5, "units": "s"}.items()
    assert_one_line(run("software", "show", "vlm"), "unknown framework or engine", "vllm")
    assert_one_line(run("software", "show", "vllm-x"), "a release is numbers")
    wrong = ("software", "show", "vllm", "--set", "software.since=1")
    assert_one_line(run(*wrong), "goes by the engine's name")


def test_what_holds_for_some_runs_is_shown() -> None:
    shown = run("software", "show", "megatron-bridge@0.5").stdout
    assert "mxfp8" in shown
    when = document("software", "show", "megatron-bridge@0.5")["when"]
    last = when[-1]
    conditions = {"precisions": ["mxfp8"], "experts": True, "recurrent": False}
    assert last["conditions"] == conditions | {"least_domain": 72}
    assert last["values"]["overlap_expert_parallel"] is True
    assert last["source"]
    (only,) = document("software", "show", "fsdp")["when"]
    assert only["conditions"] == {"sinks": True}


def test_releases_of_frameworks_are_chosen_by_name() -> None:
    assert document("software", "show", "nemo@24.07")["name"] == "nemo@23.08"
    assert_one_line(run("software", "show", "nemo@x"), "a release is a number or a year")
    wrong = ("software", "show", "nemo", "--set", "software.since=1")
    assert_one_line(run(*wrong), "--framework NAME@RELEASE")


SETTABLE = [key for key in facts_of(Framework) if key not in (*RELEASE, *OF_MEASURED_RUNS)]


@pytest.mark.parametrize("key", SETTABLE)
def test_every_value_that_show_offers_can_be_set(key: str) -> None:
    value = getattr(FRAMEWORKS["megatron"], key)
    other = str(not value).lower() if isinstance(value, bool) else "1" if value != 1 else "2"
    words = {"overlap_tensor_parallel": "none", "scaling": "current"}
    words |= {"gradient_accumulation": "autograd", "stage_split": "by_cost", "routing": "uniform"}
    words |= {"expert_dispatch": "deepep", "graph_scope": "router"}
    words |= {"exchange_algorithm": "hierarchical"}
    words |= {"merges_attention": "composed", "selective_recompute": "core_attn"}
    words |= {"offload_modules": "core_attn"}
    other = words.get(key, other)
    found = document("software", "show", "megatron", "--set", f"software.{key}={other}")
    assert found["name"] == f"megatron[{key}={other}]"
    assert found["values"][key]["value"] != value


def test_a_projection_names_its_software_and_what_was_assumed() -> None:
    shown = run("project", *ONE).stdout
    assert "bf16, megatron\n" in shown
    assert "assumed: --framework megatron --precision bf16 --sp true --zero 1" in shown
    found = document("project", *ONE)
    assert found["framework"] == "megatron"
    assert found["assumed"] == {
        "framework": "megatron",
        "precision": "bf16",
        "sp": True,
        "zero": 1,
        "micro-batch": 1,
        "recompute": "none",
    }
    said = shlex.split("--framework megatron --precision bf16 --sp true --zero 1 --micro-batch 1")
    assert document("project", *ONE, *said, "--recompute", "none")["assumed"] == {}
    assert "assumed" not in run("project", *ONE, *said, "--recompute", "none").stdout
    assert "assumed: --framework megatron" in run("explain", *ONE, "--top", 1).stdout


def test_a_sweep_names_its_software_and_what_was_assumed() -> None:
    result = run("sweep", *ONE)
    assert "software megatron\n" in result.stdout
    assert "assumed: --framework megatron --precision bf16 --sp true\n" in result.stdout
    found = document("sweep", *ONE, "--framework", "fsdp", "--sp", "false")
    assert found["framework"] == "fsdp"
    assert found["assumed"] == {"precision": "bf16"}


def test_a_changed_value_counts_and_is_recorded() -> None:
    plain = document("project", *ONE)
    changed = document("project", *ONE, "--set", "software.optimizer_bytes=8")
    assert changed["framework"] == "megatron[optimizer_bytes=8]"
    assert changed["memory_optimizer"] == pytest.approx(plain["memory_optimizer"] * 8 / 12)
    words = ("--set", "software.dropout=true", "--set", "device.tdp=500")
    shown = run("sweep", *ONE, *words)
    assert "software megatron[dropout=true]" in shown.stdout
    suggested = next(line for line in shown.stderr.splitlines() if "perfmodel explain" in line)
    again = document("project", *shlex.split(suggested)[2:])
    assert again["framework"] == "megatron[dropout=true]"


def test_deepseek_v3_can_be_told_as_published() -> None:
    """bf16 moments beside an fp32 master, fp8 dispatch and cached activations, DualPipe.

    arXiv:2412.19437, section 3.3; it was trained so on 2,048 H800 of 80 GB, in 19.93 s a step
    (arXiv:2505.09343, table 4).
    """
    words = shlex.split(
        "--model deepseek-v3 --mtp stated --hardware hgx-h800 --devices 2048 --pp 16 --ep 64 "
        "--seq-len 4096 --global-batch 15360 --precision fp8 --recompute selective "
        "--schedule dualpipe"
    )
    before, after = (
        json.loads(run("project", *words, "--framework", name, "--json").stdout)
        for name in ("megatron-deepep", "hai-llm")
    )
    assert (before["fits"], after["fits"], after["tight"]) == (False, True, True)
    assert after["step_time"] == pytest.approx(19.93, rel=0.05)


@pytest.mark.parametrize(
    ("setting", "parts"),
    [
        ("software.optimizer_byts=8", ("did you mean optimizer_bytes",)),
        ("software.scaling=now", ("'scaling' must be one of delayed, current",)),
        ("software.dropout=3", ("'dropout' must be true or false",)),
        ("software.bucket_bytes=-1", ("'bucket_bytes' must be a finite number above 0 [B]",)),
        ("software.attention_generation=1.5", ("a whole number",)),
        ("software.zero_stage=3", ("says what a measured run means",)),
        ("software.name=x", ("unknown framework field 'name'",)),
    ],
)
def test_what_cannot_be_set_is_one_line(setting: str, parts: tuple[str, ...]) -> None:
    assert_one_line(run("project", *ONE, "--set", setting), *parts)
    assert_one_line(run("software", "show", "megatron", "--set", setting), *parts)


def test_software_is_refused_where_none_runs() -> None:
    words = shlex.split("kernel gemm --hardware dgx-h100 --m 4 --n 4 --k 4")
    for name in ("--set", "--sweep"):
        text = "software.dropout=1"
        assert_one_line(run(*words, name, text), "'software.dropout'", "no training software")
