"""What only other kernels call, without what only a call from Python needs.

Numba compiles a function that another one calls as if Python called it, too: with a wrapper that
takes Python's arguments apart, and machine code that nobody runs, for callers hold copies of their
own. Three of four kernels are called by kernels alone. They are compiled as far as callers take
them in, to optimised intermediate code, which is the same as before: a fifth of the time less. One
that Python calls after all is compiled whole then.
"""

from __future__ import annotations

from functools import cached_property
from types import MethodType
from typing import Any, cast

from llvmlite import binding  # type: ignore[import-untyped]
from numba.core import caching, compiler, dispatcher, event, typing
from numba.core.compiler_lock import global_compiler_lock

_FunctionCompiler: Any = cast(Any, dispatcher)._FunctionCompiler


class Inner:
    """The overloads of a kernel that other kernels call.

    Parameters
    ----------
    whole : Dispatcher
        The kernel as Python calls it. What it has compiled, or on disk, serves callers as well.

    Attributes
    ----------
    overloads : dict
        Compile results for callers alone, by types of arguments.
    """

    def __init__(self, whole: Any) -> None:
        self.whole = whole
        self.overloads: dict[tuple[Any, ...], Any] = {}
        options = whole.targetoptions | {"no_cpython_wrapper": True}
        self._compiler = _Compiler(
            whole.py_func, whole.targetdescr, options, whole.locals, compiler.Compiler
        )

    @cached_property
    def _cache(self) -> Any:
        stored = getattr(self.whole._cache, "_cache_file", None)
        if stored is None:
            return caching.NullCache()
        kept: Any = _Cache(self.whole.py_func)  # type: ignore[no-untyped-call]
        kept._cache_file = stored  # one index: what makes one stale makes both
        return kept

    def is_kept(self, arguments: tuple[Any, ...]) -> bool:
        """Return whether callers find what they need on disk."""
        context = self.whole.targetctx
        caches = self.whole._cache, self._cache
        return any(is_kept(cache, arguments, context) for cache in caches)

    def result(self, arguments: tuple[Any, ...]) -> Any:
        """Return the compile result for types of arguments, which is made if need be."""
        whole, context = self.whole, self.whole.targetctx
        with global_compiler_lock:
            for known in (whole.overloads, self.overloads):
                if arguments in known:
                    return known[arguments]
            if is_kept(whole._cache, arguments, context):
                whole.compile(arguments)
                return whole.overloads[arguments]
            # A kernel that calls itself is found by this.
            with whole._compiling_counter:
                found = self._cache.load_overload(arguments, context)
                if found is None:
                    found = self._compiled(arguments)
                    self._cache.save_overload(arguments, found)
            context.insert_user_function(found.entry_point, found.fndesc, [found.library])
            self.overloads[arguments] = found
            return found

    def _compiled(self, arguments: tuple[Any, ...]) -> Any:
        about = {"dispatcher": self.whole, "args": arguments, "return_type": None}
        with cast(Any, event).trigger_event("numba:compile", data=about):
            found = cast(Any, self._compiler).compile(arguments, None)
        _end_with_intermediate_code(found.library)
        return found._replace(entry_point=_Key())

    def template(self, args: Any, kws: Any) -> Any:
        """Return what the compiler asks of a dispatcher to type a call."""
        signature, folded = cast(Any, self._compiler).fold_argument_types(args, kws)
        found = self.result(tuple(folded))
        name = self.whole.py_func.__name__
        made = cast(Any, typing).make_concrete_template(
            f"CallTemplate({name})", key=name, signatures=[found.signature]
        )
        return made, signature, folded, {}

    def key(self, arguments: Any) -> Any:
        """Return what the compiler knows an overload by when it lowers a call."""
        return self.result(tuple(arguments)).entry_point


def call_lightly(compiled: Any) -> None:
    """Let other kernels call the inner overloads of a kernel.

    Parameters
    ----------
    compiled : Dispatcher
        The kernel as Python calls it.
    """
    inner = Inner(compiled)
    compiled.inner = inner
    compiled.get_call_template = inner.template
    compiled.get_overload = inner.key
    add = compiled.add_overload

    def added(result: Any) -> None:
        # Inner kernels told nobody where the constants of their errors are: there was no code.
        for environment in result._find_referenced_environments():
            result.library.codegen.set_env(environment.env_name, environment)
        add(result)

    compiled.add_overload = added


def is_kept(cache: Any, arguments: tuple[Any, ...], context: Any) -> bool:
    """Return whether a cache has an overload on disk, for this processor and these sources."""
    stored = getattr(cache, "_cache_file", None)
    if stored is None:
        return False
    try:
        return cache._index_key(arguments, context.codegen()) in stored._load_index()
    except OSError:
        return False


class _Key:
    """Stands for the address of a function that has none."""


class _Compiler(_FunctionCompiler):  # type: ignore[misc]
    def _customize_flags(self, flags: Any) -> Any:
        flags.no_compile = True
        return flags


class _Results(caching.CompileResultCacheImpl):
    """Keeps the intermediate code of a kernel, and what a caller has to know of it."""

    def reduce(self, cres: Any) -> Any:
        cres.fndesc.typemap = cres.fndesc.calltypes = None  # they may not be picklable
        code = cres.library._get_module_for_linking().as_bitcode()
        around = tuple(cres._find_referenced_environments())
        return cres.library.name, code, cres.fndesc, cres.signature, cres.reload_init, around

    def rebuild(self, target_context: Any, payload: Any) -> Any:
        name, code, fndesc, signature, reload_init, around = payload
        for function in reload_init:
            function()
        library = target_context.codegen().create_library(name)
        library._final_module = library._shared_module = binding.parse_bitcode(code)
        library._finalized = True
        known = {
            "target_context": target_context,
            "typing_context": target_context.typing_context,
            "library": library,
            "fndesc": fndesc,
            "signature": signature,
            "reload_init": reload_init,
            "referenced_envs": around,
            "lifted": (),
            "entry_point": _Key(),
            "objectmode": False,
        }
        fields = cast(Any, compiler.CompileResult)._fields
        return compiler.CompileResult(**(dict.fromkeys(fields) | known))


class _Cache(caching.FunctionCache):
    """Keeps inner overloads beside whole ones."""

    _impl_class = _Results

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        return (*super()._index_key(sig, codegen), "inner")  # type: ignore[no-untyped-call]


def _end_with_intermediate_code(library: Any) -> None:
    """Spare a library that is not finalised yet its machine code."""

    def end(self: Any) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True

    library._finalize_final_module = MethodType(end, library)
