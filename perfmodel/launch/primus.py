"""Primus' experiments (YAML), written and read.

An experiment (``examples/megatron/configs/*.yaml`` of AMD-AGI/Primus) names the framework that
runs, a file of the model and ``overrides`` of both; ``${NAME:default}`` are variables of the
environment. Keys of Megatron-LM are the destinations of its arguments
(`perfmodel.launch.megatron`), with the defaults of ``primus/configs/modules/megatron``
(trainer_base.yaml, pre_trainer.yaml) and ``primus/configs/models/megatron/language_model.yaml``;
those of Primus-Turbo stand in ``primus_turbo.yaml``. Experiments of torchtitan and MaxText are read
with those programs' own keys.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.base.errors import FormatError, StrategyError
from perfmodel.base.files import Entry, shortened
from perfmodel.base.pipelines import SCHEDULE_FACTS
from perfmodel.launch import maxtext, megatron, torchtitan
from perfmodel.launch.core import core_facts
from perfmodel.launch.describe import Launch, known_as
from perfmodel.launch.settings import NOTHING, Keys, Settings
from perfmodel.launch.stages import core_schedule
from perfmodel.launch.table import load_program
from perfmodel.launch.text import format_yaml, launcher, parse_yaml
from perfmodel.model.presets import find_preset, load_model
from perfmodel.model.spec import ModelSpec

PROGRAM = load_program("primus")
ALGORITHMS, MEMORY, MODELS = (PROGRAM.own[name] for name in ("algorithms", "memory", "models"))

_MODULE = "modules.pre_trainer."
_OVERRIDES = _MODULE + "overrides."
_TURBO = "enable-primus-turbo"
_PLAIN = ("1f1b", "1f1b-interleaved")
_SCHEDULER, _ALGORITHM = "patch-primus-pipeline", "pp-algorithm"
_PATCH, _ZERO_BUBBLE = "patch-zero-bubble", "enable-zero-bubble"
_IN_V, _MEMORY = "zero-bubble-v-schedule", "zero-bubble-v-schedule-mem-setup"
_AHEAD = "zero-bubble-max-pending-backward"

# Megatron-LM's option -> its name here, and its value where the option switches off.
SPELLED: Mapping[str, tuple[str, bool | None]] = {
    **{option: (name, False) for option, name in PROGRAM.own["negated"].items()},
    **{option: (name, None) for option, name in PROGRAM.own["spelled"].items()},
}
_OPTIONS = {name: (option, off) for option, (name, off) in SPELLED.items()}
_OF_MODELS = ("swiglu", "disable-bias-linear", "untie-embeddings-and-output-weights")
# Switches that are on by default: written where they are off.
_ON = ("bf16", "sequence-parallel", "use-distributed-optimizer", *_OF_MODELS)
_SWITCHES = ("sequence_parallel", "overlap_grad_reduce", "overlap_param_gather")  # examples write 1
_GENERAL = "language_model"


def keys_of(launch: Launch) -> Keys:
    """Return the model's file and all overrides, as dotted paths."""
    options = megatron.keys_of(launch)
    keys: Keys = {_MODULE + "framework": "megatron", _MODULE + "config": "pre_trainer.yaml"}
    name = known_as(launch.model, MODELS)
    keys[_MODULE + "model"] = f"{name or _GENERAL}.yaml"
    if name:
        assert launch.model is not None
        length = launch["sequence_length"]
        said = megatron.model_arguments(core_facts(load_model(MODELS[name]), PROGRAM.title, length))
        stated = megatron.model_arguments(core_facts(launch.model, PROGRAM.title, length))
        for option, value in stated.items():
            if said.get(option) == value and option != "max-position-embeddings":
                del options[option]
    for option in _ON:
        if option not in options and not (name and option in _OF_MODELS):
            options[option] = False
    options |= PROGRAM.write_software(launch)
    options[_TURBO] = launch.framework.name.startswith("primus-turbo")
    for algorithm, schedule in ALGORITHMS.items():
        if schedule == launch["pipeline_schedule"]:
            options |= {_SCHEDULER: True, _ALGORITHM: algorithm}
    for option, value in options.items():
        key, off = SPELLED.get(option, (option.replace("-", "_"), None))
        keys[_OVERRIDES + key] = value if off is None else not value
    return keys


def body(launch: Launch) -> str:
    """Return an experiment."""
    about = {
        "work_group": "${PRIMUS_TEAM:amd}",
        "user_name": "${PRIMUS_USER:root}",
        "exp_name": "${PRIMUS_EXP_NAME:pretrain}",
        "workspace": "./output",
    }
    return format_yaml(about | keys_of(launch))


def notes(launch: Launch) -> list[str]:
    """Return what a user of this file should know."""
    if known_as(launch.model, MODELS):
        return []
    return ["Primus has no file of this model: its sizes stand in the overrides"]


def parse_launch(text: str, path: str, typed: Keys = NOTHING) -> Launch:
    """Return what an experiment says.

    Raises
    ------
    FormatError
        Names the key and its line.
    """
    document = parse_yaml(text, path)
    if _MODULE + "framework" not in document:
        other = next((key for key in document.entries if key.startswith("modules.")), "")
        where = document.where(other) if other else path
        raise FormatError(f"{where}: no {_MODULE}framework; only pre-training is projected")
    framework = document.word(_MODULE + "framework")
    if framework not in ("megatron", "torchtitan", "maxtext"):
        raise document.wrong(_MODULE + "framework", "one of megatron, torchtitan, maxtext")
    found, per_node = launcher(text)
    devices = typed.get("devices", found)
    named = document.word(_MODULE + "model").removesuffix(".yaml")
    model = _load(named)
    inside = {
        key.removeprefix(_OVERRIDES): entry
        for key, entry in document.entries.items()
        if key.startswith(_OVERRIDES)
    }
    if framework == "megatron":
        overrides = Overrides(path, inside)
        overrides.typed = typed
        return _of_megatron(overrides, model, named, devices, per_node)
    settings = Settings(path, inside)
    settings.typed = typed
    if model is None and named:
        settings.remark(f"model '{named}' is not known here; --model names one")
    if framework == "torchtitan":
        _name_flavor(settings, model, fp8=named.lower().endswith("fp8"))
        return torchtitan.launch_of(settings, devices, per_node)
    if model is not None:
        settings.entries.setdefault("model_name", Entry(model.name))
    return maxtext.launch_of(settings, devices)


class Overrides(Settings):
    """Megatron-LM's options under the names that experiments give them.

    Parameters
    ----------
    path : str
    entries : mapping of str to Entry
        As the file has them.
    """

    def __init__(self, path: str, entries: Mapping[str, Entry]) -> None:
        options = {}
        for name, entry in entries.items():
            option, off = _OPTIONS.get(name, (name.replace("_", "-"), None))
            value = bool(entry.value) if name in _SWITCHES else entry.value
            if off is not None:
                value = None if value is None else not value
            options[option] = entry._replace(value=value)
        super().__init__(path, options)

    def name(self, key: str) -> str:
        """Return an option as the file writes it."""
        return SPELLED.get(key, (key.replace("-", "_"), None))[0]


def _load(named: str) -> ModelSpec | None:
    plain = shortened(named).lower().removesuffix("-fp8").removesuffix("-bf16")
    names = {name.lower(): preset for name, preset in MODELS.items()}
    preset = find_preset(names.get(plain, plain)) if plain and plain != _GENERAL else None
    return load_model(preset, mtp="stated") if preset else None


def _of_megatron(
    settings: Overrides, model: ModelSpec | None, named: str, devices: int, per_node: int
) -> Launch:
    entries = settings.entries
    if model is not None:
        _put_model(settings, model)
        entries.setdefault("hidden-dropout", Entry("0.0"))
        entries.setdefault("attention-dropout", Entry("0.0"))
    elif named != _GENERAL:
        settings.remark(f"model '{named}' is not known here; --model names one")
    for option, value in PROGRAM.own["defaults"].items():
        entries.setdefault(option, Entry(value))
    settings.rename("use-turbo-grouped-gemm", "use-turbo-grouped-mlp")
    turbo = [key for key in entries if key.startswith(("use-turbo-", "turbo-sync-"))]
    if not settings.flag(_TURBO):
        for key in turbo:
            if entries.pop(key).value not in (False, None, 0):
                settings.remark(f"{settings.name(key)}: off, for {settings.name(_TURBO)} is not on")
    elif settings.flag("use-turbo-deepep"):
        entries["moe-token-dispatcher-type"] = Entry("flex")
        entries["moe-enable-deepep"] = Entry(True)
    return megatron.launch_of(settings, devices, per_node, program=PROGRAM, schedule=_schedule)


def _schedule(settings: Settings, pipeline: int, virtual: int) -> Keys:
    """Return the schedule and its chunks, of whichever of the two schedulers is switched on.

    ``primus/configs/modules/megatron/zero_bubble.yaml`` and ``primus_pipeline.yaml``. The V's have
    two chunks where the file says nothing, as zerobubble's arguments.py sets them.
    """
    usual = core_schedule(settings, pipeline, virtual)
    patched, scheduled = settings.flag(_PATCH), settings.flag(_SCHEDULER)
    algorithm = settings.word(_ALGORITHM, _PLAIN[1])
    enabled, in_v = settings.entries.get(_ZERO_BUBBLE), settings.flag(_IN_V)
    memory, ahead = settings.word(_MEMORY, "half"), settings.word(_AHEAD, "auto")
    if patched and scheduled:
        raise settings.contradiction("only one scheduler can be on", _PATCH, _SCHEDULER)
    if scheduled and algorithm not in _PLAIN:
        if algorithm not in ALGORITHMS:
            known = ", ".join((*_PLAIN, *ALGORITHMS))
            raise settings.wrong(_ALGORITHM, f"one of {known} (others are not modelled)")
        return _with_chunks(settings, _ALGORITHM, ALGORITHMS[algorithm], virtual)
    if not patched or pipeline == 1 or (enabled is not None and not settings.flag(_ZERO_BUBBLE)):
        return usual
    if settings.flag("enable-1f1b-v"):
        raise settings.wrong("enable-1f1b-v", "false (1F1B in a V is not modelled)")
    if in_v:
        if memory not in MEMORY:
            raise settings.wrong(_MEMORY, f"one of {', '.join(MEMORY)}")
        return _with_chunks(settings, _IN_V, MEMORY[memory], virtual)
    if ahead not in ("auto", str(pipeline), str(2 * pipeline)):
        raise settings.wrong(
            _AHEAD, f"auto, {pipeline} or {2 * pipeline} micro-batches (others are not modelled)"
        )
    if ahead == "auto":
        settings.remark(
            f"{settings.name(_AHEAD)} auto: a solver finds the schedule; projected as zb_h1"
        )
    return _with_chunks(
        settings, _PATCH, "zb_h2" if ahead == str(2 * pipeline) else "zb_h1", virtual
    )


def _with_chunks(settings: Settings, key: str, name: str, virtual: int) -> Keys:
    chunks = SCHEDULE_FACTS[name].fewest_chunks
    if virtual not in (1, chunks):
        raise settings.wrong(key, f"another, or {chunks} virtual stages a rank, not {virtual}")
    return {"pipeline_schedule": name, "virtual_pipeline": chunks}


def _put_model(settings: Overrides, model: ModelSpec) -> None:
    """Put what a model's file says beside the overrides, which win."""
    try:
        facts = core_facts(model, PROGRAM.title, 1)
    except StrategyError as error:
        settings.remark(f"{error}; --model names the model")
        return
    layers = settings.whole("num-layers", model.num_layers)
    for name, value in facts.items():
        if name in ("moe_layer_freq", "window_attn_skip_freq") and isinstance(value, list):
            facts[name] = (value + value[-1:] * layers)[:layers]
    for option, value in megatron.model_arguments(facts).items():
        settings.entries.setdefault(option, Entry(value))
    for option in _OF_MODELS:
        settings.entries.setdefault(option, Entry(option in megatron.model_arguments(facts)))


def _name_flavor(settings: Settings, model: ModelSpec | None, *, fp8: bool) -> None:
    """Put torchtitan's words for a model, and the converters of its file."""
    flavor = known_as(model, torchtitan.FLAVORS)
    if flavor is not None:
        settings.entries.setdefault("model.name", Entry(flavor[0]))
        settings.entries.setdefault("model.flavor", Entry(flavor[1]))
    if fp8:
        settings.entries.setdefault("model.converters", Entry(["quantize.linear.float8"]))
