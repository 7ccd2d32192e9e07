"""Kernels that kernels call: compiled as text for their callers, never made executable.

Numba makes machine code of every function that it compiles, with wrappers for Python and C, and
optimises it with all that it calls, even where only another compiled function is going to call it.
That is most of what compiling takes. Here such a function stays as LLVM's text until a kernel that
Python calls is linked with all that it reaches, once, and optimised as a whole.

This reaches into Numba, as far as the versions between `_jit.LOWEST_TRIED` and `_jit.NEWEST_TRIED`
are made; with others `_jit` does without this file.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import AnalysisPass, register_pass


class _Text(JITCodeLibrary):
    """LLVM's text of one function, and what it calls."""

    def add_linking_library(self, library: Any) -> None:
        """Note what is called, and what that calls; it is linked in the end."""
        for one in (library, *_reached(library)):
            if one not in self._linking_libraries:
                library._ensure_finalized()
                self._linking_libraries.append(one)

    def finalize(self) -> None:
        """Nothing else comes in."""
        self._raise_if_finalized()
        self._finalized = True

    def get_pointer_to_function(self, name: str) -> int:
        """Nothing is executable."""
        self._ensure_finalized()
        return 0

    @property
    def codegen(self) -> Any:
        """What makes code, but for that nothing lies in memory."""
        return _WithoutMemory(self._codegen)


class _WithoutMemory:
    def __init__(self, codegen: Any) -> None:
        self._codegen = codegen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._codegen, name)

    def set_env(self, name: str, environment: Any) -> None:
        """Set nothing: compiled code that comes from the cache does without it, too."""


class _Code(JITCodeLibrary):
    """Machine code of one function and all that it reaches."""

    def add_linking_library(self, library: Any) -> None:
        """Link what is called, and what that calls."""
        for one in (library, *_reached(library)):
            if one not in self._linking_libraries:
                super().add_linking_library(one)


def _reached(library: Any) -> tuple[Any, ...]:
    return tuple(library._linking_libraries) if isinstance(library, _Text) else ()


@register_pass(mutates_CFG=False, analysis_only=True)
class _IntoText(AnalysisPass):
    _name = "perfmodel_into_text"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        state.library = _Text(state.targetctx.codegen(), state.func_id.func_qualname)
        return False


@register_pass(mutates_CFG=False, analysis_only=True)
class _IntoCode(AnalysisPass):
    _name = "perfmodel_into_code"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        state.library = _Code(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        return False


LEFT_OUT = {
    *("WithLifting", "InlineClosureLikes", "RewriteDynamicRaises", "MakeFunctionToJitFunction"),
    *("InlineInlinables", "LiteralUnroll", "LiteralPropagationSubPipelinePass", "InlineOverloads"),
    *("NopythonRewrites", "FindLiterallyCalls"),
}
"""What Numba does for closures, comprehensions and the like, which kernels do not have."""


class _Compiler(CompilerBase):
    into: Any = None

    def define_pipelines(self) -> list[Any]:
        manager = DefaultPassBuilder.define_nopython_pipeline(self.state)
        manager.passes = [one for one in manager.passes if one[0].__name__ not in LEFT_OUT]
        manager.add_pass_after(self.into, manager.passes[0][0])
        manager.finalize()
        return [manager]


class TextCompiler(_Compiler):
    """Compiles what kernels call."""

    into = _IntoText


class CodeCompiler(_Compiler):
    """Compiles what Python calls."""

    into = _IntoCode


def compiled(
    function: Callable[..., Any], inline: bool, lean: bool, cached: bool
) -> Callable[..., Any]:
    """Compile a function for Python, and as text for the kernels that call it.

    Parameters
    ----------
    function : callable
        The kernel as plain Python.
    inline, lean : bool
        See `perfmodel.kernels._jit.jit_inline` and `jit_lean`.
    cached : bool
        Keep it on disk, where `numba.config.CACHE_DIR` says.
    """
    _remember_arithmetic()
    # Said of every kernel: what says nothing does as the kernel does that it is compiled for first,
    # and all that a kernel calls which becomes part of its callers would become part of it.
    inner: dict[str, Any] = {}
    if _knows("forceinline"):
        inner["forceinline"] = inline
    if _knows("_nrt"):  # Numba's runtime, which counts references
        inner["_nrt"] = not lean
    njit: Any = numba.njit
    outer = njit(cache=cached, nogil=True, pipeline_class=CodeCompiler, **inner)(function)
    inner |= {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    called = _once_for_all_constants(njit(pipeline_class=TextCompiler, **inner)(function))
    return called_by_kernels(outer, called)


@functools.cache
def _remember_arithmetic() -> None:
    """Let Numba look up once how numbers of some types are added, compared and so on.

    It tries all that the operator means for arrays, lists and texts each time, an eighth of what
    compiling takes.
    """
    from numba import types
    from numba.core.types.functions import BaseFunction

    look_up: Any = BaseFunction.get_call_type
    known: dict[Any, Any] = {}

    def get_call_type(self: Any, context: Any, arguments: Any, keywords: Any) -> Any:
        numbers = all(isinstance(one, types.Number | types.Boolean) for one in arguments)
        if keywords or not numbers:
            return look_up(self, context, arguments, keywords)
        asked = self, context, arguments
        if asked not in known:
            signature = look_up(self, context, arguments, keywords)
            known[asked] = signature, self._impl_keys[signature.args]
        signature, implementation = known[asked]
        self._impl_keys[signature.args] = implementation
        return signature

    setattr(BaseFunction, look_up.__name__, get_call_type)


@functools.cache
def _knows(option: str) -> bool:
    """Whether Numba has an option that its documents leave out.

    Without it kernels are as right, and slower.
    """
    from numba.core import options

    return hasattr(getattr(options, "DefaultOptions", None), option)


def _once_for_all_constants(compiled: Any) -> Callable[..., Any]:
    """Let calls with a constant use the code for any value of its type.

    Numba compiles a function that another kernel calls with a number written out once more
    for each such number, and all that it calls with it. LLVM inserts constants into what it
    inlines anyway. This reaches into Numba: a version whose dispatchers have no such method
    compiles more often, and is otherwise as good.
    """
    from numba import types

    template = getattr(compiled, "get_call_template", None)
    if template is None:
        return compiled

    def unliteral(arguments: Any, keywords: Any) -> Any:
        return template(
            tuple(types.unliteral(one) for one in arguments),
            {name: types.unliteral(one) for name, one in keywords.items()},
        )

    compiled.get_call_template = unliteral
    return compiled


def called_by_kernels(compiled: Any, inner: Any) -> Any:
    """Let kernels that call a compiled function use another one of the same.

    Parameters
    ----------
    compiled, inner : Dispatcher
        For Python, and for kernels.
    """
    compiled.get_call_template = inner.get_call_template
    compiled.get_overload = inner.get_overload
    return compiled
