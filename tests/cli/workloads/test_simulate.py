"""``perfmodel simulate``: every kind of workload and machine, its outputs, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import xarray as xr
from click.testing import Result

from perfmodel.workloads.formats.chakra.files import write_traces
from perfmodel.workloads.trace import COLLECTIVE, COMPUTE, RECEIVE, SEND, TraceBuilder, TraceSet
from tests.cli.astra_files import NETWORK, ROOFLINE
from tests.cli.astra_files import SYSTEM as RING_SYSTEM
from tests.cli.running import assert_one_line, run
from tests.cli.workloads.files import NATIVE_NETWORK, NATIVE_SYSTEM
from tests.data import table_of

SYSTEM = RING_SYSTEM | ROOFLINE
# All-reduce of 1 MiB in that ring (example of perfmodel.workloads.twins.astra.collective) [ns].
ALL_REDUCE = 53710
# Native runs of it by ASTRA-sim 1.0 on a ring of 4: 41,565 ns in 4 chunks.
MICRO = "MICRO\n1\nsum\t-1\t5\tNONE\t0\t5\tNONE\t0\t5\tALLREDUCE\t1048576\t5\n"
DATA_PARALLEL = (
    "DATA\n2\n"
    "first\t-1\t1000\tNONE\t0\t2000\tNONE\t0\t3000\tALLREDUCE\t1048576\t10\n"
    "second\t-1\t4000\tNONE\t0\t5000\tNONE\t0\t6000\tALLREDUCE\t2097152\t10\n"
)
AICB = (
    "HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 2 ep: 1 pp: 1 vpp: 1 ga: 1 "
    "all_gpus: 16 checkpoints: 0 checkpoint_initiates: 0 pp_comm: 0\n3\n"
    "grad_gather\t-1\t1\tNONE\t0\t1\tNONE\t0\t1\tALLGATHER\t1073741824\t100\n"
    "attention_layer\t-1\t1000\tALLREDUCE\t8388608\t2000\tNONE\t0\t3000\tNONE\t0\t100\n"
    "attention_layer\t-1\t1000\tALLREDUCE\t8388608\t2000\tNONE\t0\t3000\tNONE\t0\t100\n"
)


def simulate(*arguments: str) -> Result:
    return run("simulate", *arguments)


def document(*arguments: str) -> dict[str, Any]:
    result = simulate(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    assert found["schema_version"] == "1"
    assert found["workload"] == arguments[0]
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files of every kind, which is the current one."""
    monkeypatch.chdir(tmp_path)
    contents = {
        "network.yml": NETWORK,
        "system.json": json.dumps(SYSTEM),
        "native.json": json.dumps(NATIVE_NETWORK),
        "system.txt": NATIVE_SYSTEM,
        "micro.txt": MICRO,
        "data.txt": DATA_PARALLEL,
        "aicb.txt": AICB,
    }
    for name, content in contents.items():
        (tmp_path / name).write_text(content, encoding="utf-8")
    write_traces(step(16), tmp_path / "step")
    return tmp_path


def step(devices: int) -> TraceSet:
    """Compute, an all-reduce of all ranks, and a message from every even rank to the next."""
    traces = []
    for rank in range(devices):
        builder = TraceBuilder()
        first = builder.add("mul", COMPUTE, num_ops=10**9, tensor_size=10**6, duration=2e-3)
        sizes = {"collective": 0, "communication_size": 2**20}
        second = builder.add("sum", COLLECTIVE, data=[first], **sizes)
        kind = (SEND, RECEIVE)[rank % 2]
        pair = {"source": rank - rank % 2, "destination": rank - rank % 2 + 1}
        builder.add("pass", kind, data=[second], communication_size=4096, tag=0, **pair)
        traces.append(builder.build())
    return TraceSet(tuple(traces), {})


ASTRA = ("--network", "network.yml", "--system", "system.json")
NATIVE = ("--network", "native.json", "--system", "system.txt")
H100 = ("--hardware", "dgx-h100")


# ---------------------------------------------------------------- traces


def test_strict_stops_where_the_real_simulator_does_and_writes_nothing(folder: Path) -> None:
    tracked = json.loads((folder / "system.json").read_text()) | {"track-local-mem": 1}
    (folder / "tracked.json").write_text(json.dumps(tracked), encoding="utf-8")
    files = ("step", "--network", "network.yml", "--system", "tracked.json", "-o", "run.nc")
    warned = simulate(*files)
    assert warned.exit_code == 0
    assert warned.stderr.startswith("warning: astra-sim@main never ends: rank 0, node 0 (mul)")
    (folder / "run.nc").unlink()
    refused = simulate(*files, "--strict")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--strict: astra-sim@main never ends" in refused.stderr
    assert not (folder / "run.nc").exists()
    found = document(*files[:-2])
    assert found["simulator"] == "astra-sim@main"
    assert [(stop["kind"], stop["exit_codes"]) for stop in found["stops"]] == [("never ends", [0])]
    assert document("step", *ASTRA)["stops"] == []


def test_the_table_names_every_figure_and_all_ranks_together(folder: Path) -> None:
    result = simulate("step", *ASTRA)
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == "step on network.yml as ASTRA-sim main"
    assert lines[1] == "16 ranks, 2 of them distinct; 48 nodes"
    for title in ("wall time", "device computes", "communication", "exposed communication"):
        assert any(line.startswith(f"{title}  ") and line.endswith(" ns)") for line in lines)
    assert lines[-3].split() == ["all", "ranks", "count", "bytes"]
    assert lines[-2].split() == ["all_reduce", "16", "16.8", "MB"]
    assert lines[-1].split() == ["messages", "8", "32.8", "kB"]
    assert result.stderr in ("", "compiling kernels, first run only (PERFMODEL_JIT=always)\n")


def test_json_has_si_units_and_adds_up(folder: Path) -> None:
    found = document("step", *ASTRA)
    assert found["on"] == "network.yml as ASTRA-sim main"
    assert (found["ranks"], found["distinct_ranks"], found["nodes"]) == (16, 2, 48)
    # Roofline of 1e9 operations at 100 TFLOP/s: 10 µs; then the all-reduce.
    assert found["gpu_time"] == pytest.approx(10e-6, rel=0.01)
    assert found["wall_time_nanoseconds"] > 10_000 + ALL_REDUCE
    assert found["wall_time"] == pytest.approx(found["wall_time_nanoseconds"] * 1e-9)
    assert found["exposed_communication"] == pytest.approx(found["wall_time"] - found["gpu_time"])
    assert found["collectives"]["all_reduce"]["bytes"] == 16 * 2**20
    assert found["sent_bytes"] == 8 * 4096
    assert "by_rank" not in found


def test_by_rank_has_a_line_per_distinct_rank(folder: Path) -> None:
    rows = document("step", *ASTRA, "--by", "rank")["by_rank"]
    assert [(row["rank"], row["stands_for"]) for row in rows] == [(0, 8), (1, 8)]
    assert rows[0]["gpu_time"] == rows[1]["gpu_time"]
    table = simulate("step", *ASTRA, "--by", "rank").stdout
    assert "0 (×8)" in table
    assert "1 (×8)" in table


def test_models_engines_and_hardware_are_different_runs(folder: Path) -> None:
    times = {
        name: document("step", *options)["wall_time"]
        for name, options in {
            "exact": ASTRA,
            "aware": (*ASTRA, "--engine", "congestion-aware"),
            "physical": (*ASTRA, "--model", "physical"),
            "hardware": H100,
            "slower": (*H100, "--set", "system.network.0.bandwidth=1e9"),
        }.items()
    }
    assert times["aware"] == pytest.approx(times["exact"], rel=0.5)
    assert times["physical"] != times["exact"]
    assert times["slower"] > times["hardware"]
    assert "with our network model" in simulate("step", *ASTRA, "--model", "physical").stdout
    assert simulate("step", *H100, "--streams", "per-group").exit_code == 0


def test_hardware_says_what_astra_sim_would_unless_told_not_to(folder: Path) -> None:
    lines = simulate("step", *H100).stdout.splitlines()
    assert lines[-1].startswith("astra-sim@main on this hardware's network")
    assert "astra-sim@" not in simulate("step", *H100, "--no-astra-sim").stdout
    found = document("step", *H100)
    difference = sum(found["astra_sim"]["ours_is_longer_by"].values())
    assert found["astra_sim"]["wall_time"] + difference == pytest.approx(found["wall_time"])
    assert "astra_sim" not in document("step", *H100, "--no-astra-sim")
    assert "astra_sim" not in document("step", *ASTRA)


def test_with_contention_says_so_and_is_never_faster(folder: Path) -> None:
    alone, shared = document("step", *H100), document("step", *H100, "--contention")
    assert shared.pop("contention") == "max-min fair"
    assert shared.keys() == alone.keys()
    assert shared["wall_time"] >= alone["wall_time"]
    assert "communication shares ports" in simulate("step", *H100, "--contention").stdout
    assert "shares ports" not in simulate("step", *H100).stdout


def test_netcdf_has_every_figure_with_units_and_names(folder: Path) -> None:
    result = simulate("step", *ASTRA, "-o", "out.nc")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == "wrote out.nc\n"
    with xr.open_dataset("out.nc") as found:
        assert dict(found.sizes)["rank"] == 16
        assert_named(found)
        assert found.attrs["workload"] == "step"
        assert found.attrs["on"] == "network.yml as ASTRA-sim main"
        wall = float(found["wall_time"].max())
        everything = float(found["collective_bytes"].sum())
    assert wall == document("step", *ASTRA)["wall_time"]
    assert everything == 16 * 2**20


def assert_named(dataset: xr.Dataset) -> None:
    for name, variable in dataset.variables.items():
        assert variable.attrs.get("units"), name
        assert variable.attrs.get("long_name"), name
    assert dataset.attrs["schema_version"] == "1"
    assert dataset.attrs["source"].startswith("perfmodel ")


def test_the_timeline_is_a_trace_event_document(folder: Path) -> None:
    before = {item.name for item in folder.iterdir()}
    result = simulate("step", *ASTRA, "--timeline", "t.json", "--json")
    assert result.exit_code == 0, result.stderr
    assert "wrote t.json: 6 operations; open it at https://ui.perfetto.dev" in result.stderr
    wall = json.loads(result.stdout)["wall_time"]
    found = json.loads((folder / "t.json").read_text("utf-8"))
    events = found["traceEvents"]
    assert {event["ph"] for event in events} == {"X", "M"}
    names = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert names == {"rank 0", "rank 1"}
    operations = [event for event in events if event["ph"] == "X"]
    assert sorted(event["name"] for event in operations) == sorted(["mul", "sum", "pass"] * 2)
    assert all(event["ts"] >= 0 and event["dur"] > 0 for event in operations)
    assert max(event["ts"] + event["dur"] for event in operations) == pytest.approx(wall * 1e6)
    assert {item.name for item in folder.iterdir()} - before == {"t.json"}


def test_one_rank_alone_says_that_it_replays(folder: Path) -> None:
    result = simulate("step.0.et", *H100)
    assert result.exit_code == 0, result.stderr
    assert "1 rank, 1 of them distinct" in result.stdout
    assert "its communication takes the time that its trace records" in result.stderr
    assert simulate("step.0.et", *H100, "-q").stderr == ""


def test_verbose_says_what_the_workload_is(folder: Path) -> None:
    assert "step: chakra\n" in simulate("step", *ASTRA, "-v").stderr


# ---------------------------------------------------------------- texts


def test_a_text_runs_as_astra_sim_1_counts_it(folder: Path) -> None:
    found = document("micro.txt", *NATIVE)
    assert found["total_nanoseconds"] == 41565
    assert found["total_time"] == pytest.approx(41565e-9)
    assert found["chunks"] == 4
    assert found["payload_bytes"] == [1572864]
    (layer,) = found["layers"]
    assert layer["weight_gradient"]["exposed"] == pytest.approx(41565e-9)
    result = simulate("micro.txt", *NATIVE, "--by", "layer")
    assert "total time              41.56 µs  (41,565 ns)" in result.stdout
    assert result.stdout.splitlines()[-2].split() == (
        ["layer", "weight", "grad", "exposed", "weight", "grad", "communication"]
    )


def test_words_that_are_no_collectives_are_pointed_out(folder: Path) -> None:
    (folder / "micro.txt").write_text(MICRO.replace("ALLREDUCE", "ALLREDUC"), encoding="utf-8")
    result = simulate("micro.txt", *NATIVE)
    assert "'ALLREDUC' is no collective and counts as none" in result.stderr
    assert "exposed communication   0 s" in result.stdout


def test_passes_and_layers_of_a_text(folder: Path) -> None:
    once, twice = (document("data.txt", *NATIVE, "--passes", n) for n in ("1", "2"))
    assert len(twice["pass_end"]) == 2
    assert twice["total_time"] > once["total_time"]
    phases = ("forward", "input_gradient", "weight_gradient")
    computed = sum(row[phase]["compute"] for row in once["layers"] for phase in phases)
    assert once["compute_time"] == pytest.approx(computed)
    assert once["layers"][1]["forward"]["compute"] == pytest.approx(4e-6)
    assert [row["layer"] for row in once["layers"]] == ["first", "second"]
    queues = document("data.txt", *NATIVE, "--queues-per-dimension", "2")
    assert queues["total_time"] <= once["total_time"]
    result = simulate("data.txt", *NATIVE, "--by", "layer", "-o", "native.nc")
    assert result.exit_code == 0, result.stderr
    assert "first" in result.stdout
    with xr.open_dataset("native.nc") as stored:
        assert_named(stored)
        assert float(stored["total_time"]) == once["total_time"]
        assert stored["layer_name"].values.tolist() == ["first", "second"]
        waited = float(stored["exposed_communication"].sum())
    assert once["exposed_communication"] == pytest.approx(once["total_time"] - once["compute_time"])
    assert waited <= once["exposed_communication"]


def test_a_text_runs_as_traces_on_network_yml(folder: Path) -> None:
    found = document("micro.txt", *ASTRA, "--devices", "16")
    assert found["wall_time_nanoseconds"] == ALL_REDUCE
    assert_one_line(simulate("micro.txt", *ASTRA), "--devices N")


def test_an_aicb_text_runs_as_simai(folder: Path) -> None:
    found = document("aicb.txt", "--gpu-type", "A100", "--nic-type", "CX6")
    assert found["devices"] == 16
    assert found["compute"] == pytest.approx(12_003e-9)
    parts = ("data_parallel", "tensor_parallel", "expert_parallel", "expert_data_parallel")
    exposed = sum(found[f"exposed_{part}"] for part in parts)
    assert found["total_time"] == pytest.approx(found["compute"] + exposed)
    assert found["exposed_tensor_parallel"] > 0
    faster = document("aicb.txt", "--gpu-type", "H100", "--nic-type", "CX7")
    assert faster["exposed_data_parallel"] < found["exposed_data_parallel"]
    fewer = ("--gpus-per-server", "4", "--nics-per-server", "2", "--devices", "8")
    assert document("aicb.txt", "--gpu-type", "A100", *fewer)["devices"] == 8
    text = simulate("aicb.txt", "--gpu-type", "A100").stdout
    assert text.startswith("aicb.txt on 16 devices as SimAI-Analytical, A100\n")
    assert text.splitlines()[-1].split()[0] == "total"


def test_chunks_of_an_aicb_text_are_asked_for(folder: Path) -> None:
    text = Path("aicb.txt").read_text("utf-8")
    Path("stages.txt").write_text(text.replace(" pp: 1 vpp: 1 ", " pp: 2 vpp: 3 "), "utf-8")
    assert "say --virtual-pipeline 3" in simulate("stages.txt", *H100).stderr
    given = simulate("stages.txt", *H100, "--virtual-pipeline", "3")
    assert (given.exit_code, "note" in given.stderr) == (0, False)


def test_an_aicb_text_runs_on_a_hardware_profile(folder: Path) -> None:
    found = document("aicb.txt", *H100)
    assert (found["devices"], found["on"]) == (16, "on dgx-h100")
    assert found["compute"] == pytest.approx(12_003e-9)
    assert found["total_time"] > found["compute"] + found["exposed_tensor_parallel"] > 0
    slower = document("aicb.txt", *H100, "--set", "system.network.0.bandwidth=1e10")
    assert slower["exposed_tensor_parallel"] > found["exposed_tensor_parallel"]
    result = simulate("aicb.txt", *H100, "-o", "hardware.nc")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("aicb.txt on 16 devices on dgx-h100\n")
    with xr.open_dataset("hardware.nc") as stored:
        assert_named(stored)
        assert float(stored["total_time"]) == pytest.approx(found["total_time"])


def test_rows_of_one_name_are_added_up_by_layer(folder: Path) -> None:
    options = ("--gpu-type", "A100", "--by", "layer")
    layers = document("aicb.txt", *options)["layers"]
    assert [(row["layer"], row["rows"]) for row in layers] == [
        ("grad_gather", 1),
        ("attention_layer", 2),
    ]
    assert layers[1]["forward"]["compute"] == pytest.approx(2e-6)
    result = simulate("aicb.txt", *options, "-o", "simai.nc")
    assert "attention_layer     2" in result.stdout
    with xr.open_dataset("simai.nc") as stored:
        assert_named(stored)
        assert float(stored["compute_time"].sum()) == pytest.approx(12_003e-9)
        assert stored["row_name"].values.tolist()[0] == "grad_gather"


# ---------------------------------------------------------------- wrong input


@pytest.mark.parametrize(
    ("words", "parts"),
    table_of(__file__, "wrong_input_is_one_line_and_writes_nothing"),
)
def test_wrong_input_is_one_line_and_writes_nothing(
    words: str, parts: list[str], folder: Path
) -> None:
    before = {item.name for item in folder.iterdir()}
    line = words.format(astra=" ".join(ASTRA), native=" ".join(NATIVE))
    assert_one_line(simulate(*line.split()), *parts)
    assert {item.name for item in folder.iterdir()} == before


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("micro.txt", MICRO.rsplit("\t", 1)[0], "micro.txt"),
        ("micro.txt", MICRO.replace("1048576", "nan"), "micro.txt"),
        ("micro.txt", MICRO.replace("1048576", "-1"), "micro.txt"),
        ("micro.txt", MICRO.replace("MICRO\n1", "MICRO\n2"), "micro.txt"),
        ("native.json", json.dumps(NATIVE_NETWORK)[:-30], "native.json"),
        ("native.json", json.dumps(NATIVE_NETWORK | {"link-latency": [-1]}), "link-latency"),
        ("native.json", json.dumps(NATIVE_NETWORK | {"link-bandwidth": [1e999]}), "link-bandwidth"),
        ("system.txt", NATIVE_SYSTEM.replace("LIFO", "LAST"), "scheduling-policy"),
        ("system.txt", NATIVE_SYSTEM.replace("ring", "rign"), "implementation"),
    ],
)
def test_bad_files_of_a_text_run_are_one_line(
    name: str, content: str, part: str, folder: Path
) -> None:
    (folder / name).write_text(content, encoding="utf-8")
    assert_one_line(simulate("micro.txt", *NATIVE, "-o", "out.nc"), part)
    assert not (folder / "out.nc").exists()


@pytest.mark.parametrize(
    ("name", "change", "part"),
    [
        ("step.3.et", lambda content: content[:-5], "step.3.et"),
        ("step.3.et", lambda content: b"\xff" * 40, "step.3.et"),
        ("step.3.et", lambda content: b"", "step.3.et"),
        ("step.3.et", None, "the file of rank 3 is missing"),
        ("step.15.et", None, "15 ranks"),
        ("step.groups.json", lambda content: b"{", "step.groups.json"),
        ("network.yml", lambda content: content.replace(b"50.0", b"nan"), "network.yml"),
        ("network.yml", lambda content: content.replace(b"500.0", b"-500.0"), "network.yml"),
        ("network.yml", lambda content: content.replace(b"16", b"8"), "16 ranks"),
        ("system.json", lambda content: content[:-20], "system.json"),
        ("system.json", lambda content: content.replace(b"100", b"-100"), "system.json"),
    ],
)
def test_bad_files_of_a_trace_run_are_one_line(
    name: str, change: Any, part: str, folder: Path
) -> None:
    path = folder / name
    if change is None:
        path.unlink()
    else:
        path.write_bytes(change(path.read_bytes() if path.exists() else b""))
    result = simulate("step", *ASTRA, "-o", "out.nc", "--timeline", "t.json")
    assert_one_line(result, part)
    assert not (folder / "out.nc").exists()
    assert not (folder / "t.json").exists()


@pytest.mark.parametrize("content", ["", AICB[:200], AICB.replace("\n3\n", "\n4\n")])
def test_bad_aicb_texts_are_one_line(content: str, folder: Path) -> None:
    (folder / "aicb.txt").write_text(content, encoding="utf-8")
    assert_one_line(simulate("aicb.txt", "--gpu-type", "A100"), "aicb.txt")
