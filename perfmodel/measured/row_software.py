"""The software that a row of a table of measured runs names, and how it was set.

Every rule states what the software does by its own documentation or source; none was
chosen because it brings a projection nearer to a measurement, but for one that says so.
What a row of fine-tuning leaves open is as the recipe of its software has it. Expressions over
cells stand in ``words/training.toml``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from perfmodel.base.expression import evaluate_mask
from perfmodel.base.facts import Run
from perfmodel.base.precisions import PRECISIONS, format_name
from perfmodel.measured.rows import MeasuredRow, Skip, meaning, words
from perfmodel.model.adapters import WORDS as ADAPTED
from perfmodel.model.adapters import AdapterSpec
from perfmodel.model.spec import ModelSpec
from perfmodel.software.framework import (
    AS_STATED,
    FRAMEWORKS,
    Framework,
    as_run,
    find_framework,
    load_framework,
    releases_of,
)
from perfmodel.software.modules import (
    MODULES,
    NO_GRAPHS,
    OFFLOADED_POLICIES,
    SAVING_POLICIES,
    WORDS,
    graph_facts,
)
from perfmodel.training.flops import FORWARD_AND_BACKWARD, model_flops_per_token

MONTHS = 12
UNSTATED = {"pp": 1, "n_gpus": 1, "gpus_per_node": 8}
"""Numbers of a row that rules ask for -> what they are where none is stated."""


class Rule(NamedTuple):
    """Facts that change where all patterns of `where` are found and none of `unless`.

    `given` asks for numbers (`UNSTATED`) and facts of the framework, as earlier rules left them.
    """

    changes: Mapping[str, Any]
    where: Mapping[str, str] = {}
    unless: Mapping[str, str] = {}
    given: str = ""

    def holds(self, row: MeasuredRow, framework: Framework) -> bool:
        """Tell whether the rule speaks of a row."""
        return (
            all(_found(row, *cell) for cell in self.where.items())
            and not any(_found(row, *cell) for cell in self.unless.items())
            and (not self.given or _given(self.given, row, framework))
        )


def _found(row: MeasuredRow, columns: str, pattern: str) -> bool:
    for name, expression in words("training")["expressions"].items():
        pattern = pattern.replace(f"<{name}>", expression)
    return any(re.search(pattern, row.lower(column)) for column in columns.split())


def _given(condition: str, row: MeasuredRow, framework: Framework) -> bool:
    def value(name: str) -> Any:
        if name in UNSTATED:
            return row.number(name) or UNSTATED[name]
        return getattr(framework, name)

    names = (*UNSTATED, *Framework.__dataclass_fields__)
    return bool(evaluate_mask(condition, value, names, 1)[0])


def software_of(row: MeasuredRow) -> tuple[str, tuple[str, ...]]:
    """Return the preset of a row's software and release, and notes.

    Software without facts is a plain stack of its kind and of the year that the row states.
    """
    cell, month = row.lower("framework"), release_of(row)
    said = words("training")
    found = meaning(said["software"], cell)
    if row.lower("version").startswith("mlperf"):
        # containers of a round, ahead of releases
        where = f"{cell} {row.lower('hardware')}"
        found = meaning({"primus": "primus", **said["containers"]}, where) or found
        month = month if found == "nvidia-mlperf" else month_of(row)
    if found == "primus" and "turbo" in row.lower("overlap"):
        found = "primus-turbo"
    if not found:
        return unknown_software(row, month_of(row))
    own = FRAMEWORKS[find_framework(found)].software
    dated = bool(month) and len(releases_of(own)) > 1
    return find_framework(f"{own}@{month}" if dated else found), ()


def unknown_software(row: MeasuredRow, month: str) -> tuple[str, tuple[str, ...]]:
    """Return the plain stack of a row's kind and of a month, and notes.

    The device tells the kind, else words of the cell, else the degrees.
    """
    divided = max(row.number("tp") or 1, row.number("pp") or 1) > 1
    found = (
        meaning(words("training")["compiled"], row.lower("hardware"))
        or meaning(words("training")["kinds"], row.lower("framework"))
        or ("plain-megatron" if divided else "plain")
    )
    dated = month and len(releases_of(found)) > 1
    preset = find_framework(f"{found}@{month}" if dated else found)
    return preset, (f"framework '{row.text('framework')}' taken as {preset}, unknown of its kind",)


def month_of(row: MeasuredRow) -> str:
    """Return the month or year of a row's software: stated, of its round or release; or empty."""
    month = release_of(row)
    if row.lower("version").startswith("mlperf"):
        return str(meaning(words("training")["rounds"], month))
    if re.fullmatch(r"20\d\d(-\d\d)?", month):
        return month
    of_core = re.search(r"megatron|\bm-?core\b", f"{row.lower('framework')} {row.lower('version')}")
    if of_core and (core := meaning(words("training")["cores"], month)):
        return str(core)
    stated = re.search(
        r"torch[ =:v]*(\d+\.\d+)", f"{row.lower('framework')} {row.lower('version')}"
    )
    return str(meaning(words("training")["torch"], stated.group(1))) if stated else ""


def release_of(row: MeasuredRow) -> str:
    """Return the release that a row states: a number, a month or a year; empty for none.

    NVIDIA's and AMD's containers are called after the month (``NeMo container 26.02``,
    ``rocm/primus:v26.5``), as are the recipes of DGX Cloud.
    """
    version = row.lower("version")
    if found := re.match(r"mlperf v(\d+\.\d+)", version):
        return found.group(1)
    if found := re.search(r"\bv?(2\d)\.(\d\d?)\b", version):
        return f"20{found.group(1)}-{int(found.group(2)):02d}"
    if found := re.search(r"\b(20\d\d)(?:-(\d\d))?\b", version):
        second = found.group(2)
        # ``2023-24`` are two years, of which the later counts.
        return f"20{second}" if second and int(second) > MONTHS else found.group(0)
    if found := re.match(r"(?:core[_ ])?[rv]?(0\.\d+)", version):
        return found.group(1)
    return ""


def counted_flops(row: MeasuredRow, model: ModelSpec, length: int) -> float:
    """Return the FLOP of a token as a row's publisher counts them (PaLM's way unless known)."""
    cell, stated = row.lower("framework"), row.lower("tflops_formula_stated")
    counts = words("training")["flop_counts"]
    known: Mapping[str, Any] = next((it for it in counts if re.search(it["software"], cell)), {})
    month = month_of(row) or "9999"
    causal = bool(known.get("causal_since")) and month >= known["causal_since"]
    repeats = known.get("repeats", month <= known.get("repeats_until", ""))
    if stated:
        causal = "causal" in re.sub(r"non-?causal", "", stated)
        repeats = re.search(r"incl\w*\.? (?:activation )?rec|hardware flop", stated) is not None
    flops = float(model_flops_per_token(model, length, causal=causal))
    if not repeats or recompute_of(row).level != "full":
        return flops
    output = FORWARD_AND_BACKWARD * 2.0 * model.hidden_size * model.vocab_size
    return output + (flops - output) * (FORWARD_AND_BACKWARD + 1.0) / FORWARD_AND_BACKWARD


# Settings that a table took from the newest recipe of a repository, not from the run's release:
# what recipes switch on changes with each one, so that the dated facts know better.
_OF_ANOTHER_RELEASE = re.compile(r"overlap from (?:the )?(?:repo|repository) head")


@lru_cache(maxsize=1)
def rules() -> tuple[Rule, ...]:
    """Return the rules of how a software was set."""
    return tuple(Rule(**item) for item in words("training")["rules"])


def framework_of(row: MeasuredRow, run: Run) -> tuple[Framework, tuple[str, ...]]:
    """Return the declared behaviour of a row's software as it was set, and notes."""
    name, notes = software_of(row)
    framework = as_run(load_framework(name), run)
    if _OF_ANOTHER_RELEASE.search(row.lower("notes")):
        row = row.replaced("overlap", "")
    if row.truth("compile", False):
        row = row.replaced("overlap", f"{row.text('overlap')} torch.compile")
    for rule in rules():
        if rule.holds(row, framework):
            framework = replace(framework, **rule.changes)
    if modules := recompute_of(row).words:
        framework = replace(framework, selective_recompute=modules)
    return replace(_with_graphs(row, framework), name=f"{name}{AS_STATED}"), notes


def _with_graphs(row: MeasuredRow, framework: Framework) -> Framework:
    """Apply what a row says of CUDA graphs and of what they hold."""
    graphs = re.search(r"cuda_graph=(\S+)\s*(\[[^\]]*\])?", row.lower("overlap"))
    if graphs:
        some = graphs.group(1).rstrip(";") != "none"
        return replace(framework, **(graph_facts(graphs.group(2) or "") if some else NO_GRAPHS))
    if re.search(r"config \S*_cg|config_common_cg", row.text("notes")):
        return replace(framework, graph_launch=True)  # so MLPerf names its configurations
    return framework


def precision_of(row: MeasuredRow) -> tuple[str, tuple[str, ...], tuple[str, ...]]:
    """Return the precision, what was assumed, and notes.

    Raises
    ------
    Skip
        A format that is not modelled.
    """
    text = row.lower("precision")
    known = "nvfp4" if text == "fp4" else format_name(text)
    if known in PRECISIONS:
        return known, (), ()
    if not text:
        if row.lower("version").startswith("mlperf"):
            # config_common.sh of NVIDIA's containers exports FP8=True; *_fp4.sh go below.
            return "fp8", ("precision=fp8",), ()
        return "bf16", ("precision=bf16",), ()
    if "int8" in text:
        raise Skip("int8 training is not modelled yet", row.text("precision"))
    if name := meaning(words("training")["precision"], text):
        note = f"precision '{row.text('precision')}' taken as {name}"
        open_choice = name == "nvfp4" and "fp8" in text
        return name, (f"precision={name}",) if open_choice else (), (note,)
    raise Skip("unknown precision", row.text("precision"))


def zero_of(
    row: MeasuredRow, framework: Framework, pipeline: int, model_parallel: int
) -> tuple[int, int]:
    """Return the ZeRO stage and the shard group (0: all replicas).

    Parameters
    ----------
    row : MeasuredRow
    framework : Framework
    pipeline : int
        Pipeline degree.
    model_parallel : int
        Tensor times pipeline degree.
    """
    text = row.lower("fsdp_zero")
    if found := re.search(r"zero-?\s*(\d)", text):
        stage = int(found.group(1))
    elif "shard-grad-op" in text:
        stage = 2
    elif "fsdp" in text or "full-shard" in text or "hsdp" in text:
        stage = 3
    elif row.lower("dist_optimizer").startswith("no"):
        stage = 0
    elif row.lower("dist_optimizer").startswith("yes"):
        stage = 1
    else:
        stage = framework.zero_stage
    if stage == 3 and pipeline > 1 and framework.gathers_once_in_pipeline:
        stage = 2
    return stage, _shard_group(row, text, model_parallel) if stage else 0


# "shard=64", "dp_shard 8", "HSDP 8x4"; "ZeRO-1 in 8", "within groups of 8".
_SCOPE = re.compile(
    r"(?:shard|size|group|scope|hsdp)\w*\s*(?:[=:]|of)?\s*(\d+)(?!d\b)"
    r"|zero-?\s*\d\s*(?:\(|,)?\s*(?:with)?in\s+(?:groups? of\s+)?(\d+)"
)


def _shard_group(row: MeasuredRow, text: str, model_parallel: int) -> int:
    """Return how many replicas share a set of shards; 0 for all.

    Stated as a number of replicas, or as the domain that holds them: a slice, pod or node.
    """
    if found := _SCOPE.search(text):
        return int(found.group(1) or found.group(2))
    slice_devices, devices = row.whole("gpus_per_node") or 0, row.whole("n_gpus") or 0
    in_slice = "in-pod" in text or ("ici_fsdp" in text and "dcn_fsdp" not in text)
    in_node = re.search(r"(?:with)?in (?:a |the |each )?node|in-node|intra-?node", text)
    if (in_slice or in_node) and 0 < slice_devices < devices:
        return max(slice_devices // model_parallel, 1)
    return 0


def context_parallel_kind(row: MeasuredRow, framework: Framework) -> str:
    """As stated, else as the software does it."""
    if re.search(r"cp comm a2a|ulysses", row.lower("notes")):
        return "all_to_all"
    return framework.context_parallel_kind


def sequence_parallel(row: MeasuredRow, framework: Framework, tensor_parallel: int) -> bool:
    """As stated; else on with tensor parallelism where the software has it."""
    if tensor_parallel == 1:
        return False
    stated = row.lower("sequence_parallel")
    if stated:
        return stated.startswith(("y", "1", "true"))
    return framework.sequence_parallel


class RowRecompute(NamedTuple):
    """What a row says.

    Attributes
    ----------
    level : str
        Empty: it does not say.
    layers : mapping
        Fields of the strategy, where only some layers are recomputed.
    words : str
        The fact `selective_recompute`; empty: as the software means it.
    offloaded : tuple of str
        Saved outputs that are offloaded to the host's memory.
    notes : tuple of str
    """

    level: str = ""
    layers: Mapping[str, Any] = {}
    words: str = ""
    offloaded: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def recompute_of(row: MeasuredRow) -> RowRecompute:
    """Return what a row recomputes."""
    text = row.lower("recompute")
    if found := re.match(r"full \((block|uniform) (\d+)", text):
        method, layers = found[1], int(found[2])
        return RowRecompute("full", {"recompute_method": method, "recompute_num_layers": layers})
    if text in ("", "full", "selective") or text.startswith("no"):
        return RowRecompute("none" if text.startswith("no") else text)
    note = (f"recompute '{row.text('recompute')}'",)
    if text.startswith("full"):
        return RowRecompute("full", notes=(*note, "taken as full"))
    if text.startswith("selective"):
        modules = _modules(text)
        notes = () if modules else (*note, "taken as selective")
        return RowRecompute("selective", words=modules, notes=notes)
    return _policy(text, note)


def _modules(text: str) -> str:
    """Return the modules of a list in brackets, in the order of `WORDS`; empty without one."""
    found = re.search(r"[\[(]([^\])]*)[\])]", text)
    listed = re.split(r"\s*[,;]\s*", found[1].strip()) if found else []
    spelled = {module: module for module in MODULES} | words("training")["modules"]
    meant = " ".join(spelled.get(word, "") for word in listed).split()
    return " ".join(word for word in WORDS if word in meant)


def _policy(text: str, note: tuple[str, ...]) -> RowRecompute:
    """Return what a policy of MaxText's repeats."""
    name = re.sub(r"^offload (\w+)$", r"\1_offloaded", text).replace("_flash", "_with_context")
    if name in OFFLOADED_POLICIES:
        saved = OFFLOADED_POLICIES[name]
        return RowRecompute("selective", words=saved, offloaded=tuple(saved.split()))
    if name in SAVING_POLICIES:
        return RowRecompute("selective", words=SAVING_POLICIES[name])
    if "offload" in text or "custom" in text:
        return RowRecompute("full", notes=(*note, "taken as full: no tensors are named"))
    return RowRecompute(notes=(*note, "not understood"))


def tuned(row: MeasuredRow, model: ModelSpec) -> tuple[ModelSpec, dict[str, Any], tuple[str, ...]]:
    """Return the model with the adapters of a row, its documents, and what was assumed.

    Parameters
    ----------
    row : MeasuredRow
    model : ModelSpec
        As trained whole; returned so where the row is no LoRA.
    """
    task = row.lower("task")
    if task not in ("lora", "sft"):
        return model, {}, ()
    name, _ = software_of(row)
    recipes = words("training")["recipes"]
    names = (name.partition("@")[0], FRAMEWORKS[name].software)
    recipe = next((recipes[it] for it in names if it in recipes), recipes["others"])
    strategy: dict[str, Any] = {}
    packed: tuple[str, ...] = ()
    length = recipe.get("document_length")
    if length and (row.whole("seq") or 0) > length:
        strategy["document_length"] = length
        packed = (f"document_length={length}",)
    if task == "sft":
        return model, strategy, packed
    notes = f"{row.lower('model')} {row.lower('notes')}"
    stated = re.search(r"lora (?:dim|rank|r) ?=?(\d+)|\br(\d+)\b|(?:dim|rank) ?=?(\d+)", notes)
    rank = int(next(filter(None, stated.groups()))) if stated else recipe["rank"]
    said = re.findall(r"\w+", row.lower("notes"))
    targets = tuple(word for word in ADAPTED if "_" in word and word in said)
    adapters = AdapterSpec(rank, targets or tuple(recipe["targets"]))
    assumed = [] if stated else [f"lora_rank={rank}"]
    assumed += [] if targets else [f"lora_targets={'+'.join(adapters.targets)}"]
    return model.with_adapters(adapters), strategy, (*assumed, *packed)
