"""``perfmodel workload aicb`` and ``aiob``: AICB's words in, AICB's files out."""

from __future__ import annotations

import hashlib
import json
import shlex
from pathlib import Path

import pytest
from click.testing import Result

from perfmodel.workloads.convert.summary import traces_summary
from perfmodel.workloads.formats.aicb_tables import read_aicb_csv
from perfmodel.workloads.formats.aicb_text import read_aicb_text
from perfmodel.workloads.formats.aiob import read_aiob
from perfmodel.workloads.formats.astra_text import read_astra_text
from perfmodel.workloads.formats.chakra.files import read_traces
from tests.cli.running import assert_one_line, changed, run
from tests.cli.workloads.files import shown, workload
from tests.data import table_of

SMALL = (
    "--num_layers=2 --hidden_size=256 --num_attention_heads=4 --seq_length=128 "
    "--vocab_size=1000 --world_size=8 --global_batch=16"
)
SMALL_NAME = (
    "None-None-world_size8-tp1-pp1-ep1-gbs16-mbs1-seq128-MOE-False-GEMM-False-flash_attn-False.txt"
)
# Averages whose sums are those of AICB's example file: attention 1820 µs, MLP 2478 µs,
# embedding 799 µs, the optimizer's pass 16647 (least) and 17374 µs.
AVERAGES = {"Emb": 799, "atten_qkv": 1820, "mlp_linear_1": 2478, "param_time": 17374}
LEAST = {"param_time": 16647}
# Fourth execution of the public AICB study, as its user typed it.
STUDY = (
    "--frame=Megatron --gpu_type=None --model_name=gpt_7B --world_size=512 "
    "--tensor_model_parallel_size=2 --pipeline_model_parallel=1 --global_batch={batch} "
    "--micro_batch=1 --num_layers=36 --seq_length=1024 --hidden_size=4096 "
    "--num_attention_heads=32 --vocab_size=50257 --max_position_embeddings=4096 --epoch_num=1 "
    "--use-distributed-optimizer --enable_visual --aiob_enable --swiglu --use_flash_attn"
)
# First digits of SHA-256 of the files that AICB 23eec3c4 itself writes for them.
STUDY_FILES = {2048: "f5cd20bba653916d", 1024: "c1d9d904494e2788"}


def aicb(words: str, *more: str) -> Result:
    return run("workload", "aicb", *shlex.split(words), *more)


def text_of(words: str, *more: str) -> str:
    result = aicb(words, *more, "-o", "-")
    assert result.exit_code == 0, result.stderr
    return result.stdout


@pytest.fixture
def computation(tmp_path: Path) -> Path:
    """A computation file as AIOB writes it."""
    lines = ["train_iter:10"]
    for name, average in AVERAGES.items():
        least = LEAST.get(name, average)
        lines += [f"{name}:", f"    time_gpu_max: {average}"]
        lines += [f"    time_gpu_min: {least}", f"    time_gpu_avg: {average}"]
    path = tmp_path / "times.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("batch", STUDY_FILES)
def test_the_studys_command_lines_give_aicbs_bytes(
    batch: int, computation: Path, tmp_path: Path
) -> None:
    path = tmp_path / "workload.txt"
    words = STUDY.format(batch=batch)
    result = aicb(words, f"--comp_filepath={computation}", "-o", str(path))
    assert result.exit_code == 0, result.stderr
    assert hashlib.sha256(path.read_bytes()).hexdigest()[:16] == STUDY_FILES[batch]
    assert result.stderr == f"wrote {path}\n"
    assert sorted(item.name for item in tmp_path.iterdir()) == ["times.txt", "workload.txt"]
    stdout = aicb(words, f"--comp_filepath={computation}", "-o", "-")
    assert stdout.stdout.encode() == path.read_bytes()
    assert stdout.stderr == ""


@pytest.mark.parametrize(
    "words",
    [
        SMALL.replace("=", " "),
        SMALL.replace("_", "-").replace("--num-attention-heads", "--num_attention_heads"),
        f"--frame Megatron {SMALL}",
        SMALL.replace("--num_layers", "--num_l").replace("--hidden_size", "--hidden"),
        f"python -m workload_generator.SimAI_training_workload_generator {SMALL}",
        f"python3 -m workload_generator.AIOB_simAI_workload_generator {SMALL}",
        f"--comm_frame=Megatron --tp_num=1 --pp_num=1 {SMALL}",
    ],
)
def test_aicbs_spellings_are_taken_as_aicb_takes_them(words: str) -> None:
    assert text_of(words) == text_of(SMALL)


def test_the_default_name_is_aicbs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = aicb(SMALL)
    assert result.exit_code == 0, result.stderr
    assert [item.name for item in tmp_path.iterdir()] == [SMALL_NAME]
    assert result.stderr == f"wrote {SMALL_NAME}\n"
    assert result.stdout == ""
    assert aicb(SMALL, "-q").stderr == ""


def test_no_arguments_show_the_help_and_write_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = aicb("")
    assert result.exit_code == 2
    assert "Examples:" in result.stdout
    assert not list(tmp_path.iterdir())


def test_frames_and_modules_name_what_is_written(tmp_path: Path) -> None:
    head = "comm_type,comm_group,comm_group_size,msg_size,"
    by_frame = text_of(f"--frame=DeepSpeed --stage=1 {SMALL}")
    module = "workload_generator.generate_deepspeed_stage1_2_workload"
    assert by_frame == text_of(f"-m {module} --stage=1 {SMALL}")
    third = text_of(f"-m workload_generator.generate_deepspeed_stage3_workload {SMALL}")
    megatron = text_of(f"-m workload_generator.generate_megatron_workload {SMALL}")
    for text in (by_frame, third, megatron):
        assert text.startswith(head)
    assert len({by_frame, third, megatron}) == 3
    inference = "-m workload_generator.SimAI_inference_workload_generator DeepSeek-671B "
    text = text_of(f"{inference} --phase prefill --seq_length 64 --world_size 8")
    assert " mode: 1 " in text.splitlines()[0]
    vidur = text_of("-m workload_generator.Vidur_workload_generator DeepSeek-671B")
    assert vidur.startswith("layer_id\tlayer_name\tcomp_time\tcomm_size")
    for name, content in (("zero.csv", by_frame), ("inference.txt", text), ("vidur.csv", vidur)):
        path = tmp_path / name
        path.write_text(content, encoding="utf-8")
        found = json.loads(run("workload", "show", str(path), "--json").stdout)
        assert found["rows"] == len(content.splitlines()) - (2 if name.endswith("txt") else 1)
    assert read_aicb_csv(tmp_path / "zero.csv")


def test_predicted_times_follow_the_device_and_the_sequence(tmp_path: Path) -> None:
    times = {}
    for hardware, length in (("dgx-h100", 512), ("dgx-a100", 512), ("dgx-h100", 2048)):
        path = tmp_path / "x.txt"
        words = f"{SMALL} --seq_length={length} --hidden_size=2048 --aiob_enable"
        more = ("--hardware", hardware, "--call-latency", "0", "-o", str(path))
        assert aicb(words, *more).exit_code == 0
        workload = read_aicb_text(path)
        times[hardware, length] = int(workload.forward.compute_time.sum())
    assert times["dgx-h100", 512] < times["dgx-a100", 512]
    assert times["dgx-h100", 512] < times["dgx-h100", 2048]
    host = text_of(f"{SMALL} --aiob_enable", "--hardware", "dgx-h100", "--call-latency", "1e-3")
    assert host != text_of(f"{SMALL} --aiob_enable", "--hardware", "dgx-h100")


def test_the_corrected_dialect_counts_all_matrices_and_groups_of_heads(tmp_path: Path) -> None:
    words = f"{SMALL} --swiglu --ffn_hidden_size=640 --use-distributed-optimizer"
    variants = {"all": (), "grouped": ("--num-query-groups", "2")}
    gathered = {}
    for name, more in variants.items():
        path = tmp_path / f"{name}.txt"
        corrected = ("--compat", "corrected", "--hardware", "dgx-h100", *more)
        result = aicb(words, *corrected, "-o", str(path))
        assert result.exit_code == 0, result.stderr
        workload = read_aicb_text(path)
        row = workload.name.tolist().index("grad_gather")
        assert workload.weight_gradient.collective[row] == "ALLGATHER"
        gathered[name] = int(workload.weight_gradient.size[row])
        assert workload.forward.compute_time.sum() > 0
    # By hand, h 256, f 640, vocabulary filled up to 1024: embedding and LM head, per layer four
    # matrices of attention, three of the MLP and two norms, one norm at the end; bf16.
    count = 2 * 1024 * 256 + 2 * (4 * 256**2 + 3 * 256 * 640 + 2 * 256) + 256
    assert gathered["all"] == 2 * count
    # 2 groups of keys and values for 4 heads halve two matrices of h × h.
    assert gathered["all"] - gathered["grouped"] == 2 * 2 * 2 * 256 * 128


def test_a_step_without_micro_batches_says_so(tmp_path: Path) -> None:
    path = tmp_path / "empty.txt"
    result = aicb(SMALL.replace("--global_batch=16", "--global_batch=4"), "-o", str(path))
    assert result.exit_code == 0
    assert "ga is 0, so no layer is written: --global_batch=4" in result.stderr
    assert " ga: 0 " in path.read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "parts"),
    table_of(__file__, "wrong_words_are_one_line_and_write_nothing"),
)
def test_wrong_words_are_one_line_and_write_nothing(
    words: str, parts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_one_line(aicb(words), *parts)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("output", ["/nowhere/x.txt", "", "."])
def test_outputs_that_cannot_be_written_are_refused_first(output: str) -> None:
    assert_one_line(aicb(SMALL, "-o", output), "cannot write")
    assert_one_line(
        run("workload", "aiob", "--hardware", "dgx-h100", *shlex.split(SMALL), "-o", output),
        "cannot write",
    )


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("", "train_iter"),
        ("train_iter:10\nEmb:\n    time_gpu_max: 857\n", "Emb"),
        ("train_iter:10\nEmb:\n    time_gpu_max: nan\n", "line 3"),
        ("train_iter:10\nEmb:\n    time_gpu_max: -5\n", "line 3"),
        ("\x00\xff\x00", "not UTF-8"),
    ],
)
def test_bad_computation_files_are_one_line(content: str, part: str, tmp_path: Path) -> None:
    path = tmp_path / "times.txt"
    path.write_bytes(content.encode("latin-1"))
    result = aicb(f"{SMALL} --aiob_enable", f"--comp_filepath={path}", "-o", "-")
    assert_one_line(result, "times.txt", part)


# ---------------------------------------------------------------- aiob


def test_aiob_predicts_a_file_that_aicb_and_we_accept(tmp_path: Path) -> None:
    path = tmp_path / "h100.txt"
    words = [*shlex.split(SMALL), "--swiglu", "--use_flash_attn"]
    result = run("workload", "aiob", "--hardware", "dgx-h100", *words, "-o", str(path))
    assert result.exit_code == 0, result.stderr
    assert result.stderr == f"wrote {path}\n"
    found = read_aiob(path)
    assert {"Emb", "atten_flash", "mlp_gelu", "param_time"} <= set(found.sections)
    assert all(time.average >= time.minimum > 0 for time in found.sections.values())
    stdout = run("workload", "aiob", "--hardware", "dgx-h100", *words)
    assert stdout.stdout.encode() == path.read_bytes()
    whole = text_of(f"{SMALL} --swiglu --use_flash_attn --aiob_enable --comp_filepath={path}")
    predicted = f"{SMALL} --swiglu --use_flash_attn --aiob_enable --hardware dgx-h100"
    assert whole == text_of(predicted)
    shown = run("workload", "show", str(path)).stdout
    assert "AIOB computation file" in shown
    assert "atten_flash" in shown


def test_a_measured_file_becomes_calibration_tables(computation: Path, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "tables"
    given = ("--hardware", "dgx-a100", *shlex.split(SMALL), f"--comp_filepath={computation}")
    result = run("workload", "aiob", *given, "--calibration", str(folder))
    assert result.exit_code == 0, result.stderr
    written = sorted(str(path) for path in folder.iterdir())
    assert written
    assert sorted(line.removeprefix("wrote ") for line in result.stderr.splitlines()) == written
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (SMALL, ["--hardware NAME is needed"]),
        (f"{SMALL} --hardware dgx-a100 --calibration tables", ["--comp_filepath=FILE"]),
        (
            f"{SMALL} --hardware dgx-a100 --calibration tables --comp_filepath none.txt",
            ["none.txt"],
        ),
        (f"{SMALL} --hardware dgx-a100 --call-latency inf", ["--call-latency"]),
        (f"{SMALL} --hardware nothing", ["unknown hardware 'nothing'"]),
    ],
)
def test_wrong_words_of_aiob_are_one_line_and_write_nothing(
    words: str, parts: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_one_line(run("workload", "aiob", *shlex.split(words)), *parts)
    assert not list(tmp_path.iterdir())


PROBLEM = "--model llama-3.1-8b --hardware dgx-h100 --devices 16 --tp 4 --pp 2 --global-batch 4"
PROJECTION = (*shlex.split(PROBLEM), "--seq-len", "1024")


def test_chakra_writes_a_file_per_rank_and_the_groups(folder: Path) -> None:
    result = workload("chakra", *PROJECTION, "-o", "traces/llama")
    names = {f"llama.{rank}.et" for rank in range(16)} | {"llama.groups.json"}
    assert {item.name for item in (folder / "traces").iterdir()} == names
    traces = read_traces("traces/llama")
    assert result.stdout == ""
    assert f"wrote {traces.nodes:,} nodes of 16 ranks: traces/llama.0.et … " in result.stderr
    found = shown("traces/llama")
    assert found["format"] == "chakra"
    assert (found["ranks"], found["nodes"]) == (16, traces.nodes)
    assert found["num_ops"] == traces_summary(traces)["num_ops"] > 0
    layers = workload("chakra", *PROJECTION, "--granularity", "layer", "-o", "coarse")
    assert "nodes of 16 ranks" in layers.stderr
    assert 0 < read_traces("coarse").nodes < traces.nodes
    # Bytes are kept whatever a node stands for.
    fine, coarse = (shown(name)["collectives"] for name in ("traces/llama", "coarse"))
    assert {name: row["bytes"] for name, row in coarse.items()} == {
        name: row["bytes"] for name, row in fine.items()
    }
    run_ = run("simulate", "traces/llama", "--hardware", "dgx-h100", "--json")
    assert json.loads(run_.stdout)["ranks"] == 16


def test_chakra_has_a_json_form_and_two_ways_to_name_groups(folder: Path) -> None:
    options = ("--granularity", "layer", "--json-traces")
    workload("chakra", *PROJECTION, *options, "-o", "x")
    assert json.loads((folder / "x.0.json").read_text("utf-8"))
    assert all(name.isdecimal() for name in read_traces("x").groups)
    workload("chakra", *PROJECTION, *options, "--named-groups", "-o", "y")
    assert "tensor 0" in read_traces("y").groups
    assert shown("x")["format"] == "chakra-json"


def test_a_projection_as_astra_sim_text(folder: Path) -> None:
    result = workload("astra-text", *PROJECTION, "-o", "llama.txt")
    assert result.stderr == "wrote llama.txt\n"
    first = read_astra_text("llama.txt")
    assert first.forward.compute_time.sum() > 0
    text = workload("astra-text", *PROJECTION, "-o", "-")
    assert text.stdout.encode() == (folder / "llama.txt").read_bytes()
    assert text.stderr == ""
    whole = (*PROJECTION, "--vpp", "1")
    stages = [workload("astra-text", *whole, "--stage", stage, "-o", "-").stdout for stage in "01"]
    assert "\nembedding\t" in stages[0]
    assert "\nlayer_16\t" in stages[1]
    assert shown("llama.txt")["layers"] == first.layers


def test_a_projection_as_aicb_text_of_the_corrected_dialect(folder: Path) -> None:
    workload("aicb", *PROJECTION, "--compat", "corrected", "-o", "x.txt")
    found = read_aicb_text("x.txt")
    assert found.header.whole("all_gpus") == 16
    assert found.header.whole("pp") == 2
    assert shown("x.txt")["rows"] == found.rows
    simulated = run("simulate", "x.txt", "--gpu-type", "H100", "--json")
    assert json.loads(simulated.stdout)["total_time"] > 0
    assert "--granularity" not in workload("aicb", "--model", "x", "--help").stdout
    assert "AICB's own options and dialect" in workload("aicb", "--model=x", "--help").stdout


def test_a_projection_from_a_configuration_file(folder: Path) -> None:
    content = 'model = "llama-3.1-8b"\nhardware = "dgx-h100"\ndevices = 16\ntp = 4\npp = 2\n'
    (folder / "run.toml").write_text(f"{content}global-batch = 4\nseq-len = 1024\n", "utf-8")
    for command in ("aicb", "astra-text"):
        by_file = workload(command, "--config", "run.toml", "-o", "-").stdout
        assert by_file == workload(command, *PROJECTION, "-o", "-").stdout


@pytest.mark.parametrize("command", ["chakra", "astra-text", "aicb"])
@pytest.mark.parametrize(
    ("more", "parts"),
    [
        (["--model", "llama-3.1-8c"], ["llama-3.1-8c", "did you mean"]),
        (["--hardware", "dgx-h101"], ["unknown hardware 'dgx-h101'"]),
        (["--tp", "3"], ["not a multiple of tp 3"]),
        (["--seq-len", "nan"], ["--seq-len"]),
        (["--devices", "-1"], ["--devices"]),
        (["--framework", "nothing"], ["nothing"]),
        (["--nothing"], ["No such option", "--nothing"]),
    ],
)
def test_wrong_projections_are_one_line_and_write_nothing(
    command: str, more: list[str], parts: list[str], folder: Path
) -> None:
    assert_one_line(run("workload", command, *changed(PROJECTION, "-o", "out", *more)), *parts)
    assert not list(folder.iterdir())


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("astra-text -o /nowhere/x.txt", "folder '/nowhere' does not exist"),
        ("aicb -o /nowhere/x.txt", "folder '/nowhere' does not exist"),
        ("astra-text --stage 2 -o x.txt", "2"),
        ("astra-text --stage -1 -o x.txt", "--stage"),
        ("aicb --compat aicb -o x.txt", "--compat"),
        ("chakra --granularity node -o x", "--granularity"),
        ("chakra", "Missing option '-o'"),
    ],
)
def test_wrong_forms_of_projections_are_one_line(words: str, part: str, folder: Path) -> None:
    command, *more = words.split()
    assert_one_line(run("workload", command, *PROJECTION, *more), part)
    assert not list(folder.iterdir())
