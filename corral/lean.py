"""``dataclass``, lean to define: for modules that are loaded in the process of every worker.

Purpose
    The standard one compiles six methods for each class, 0.4 ms, as its module is imported; forty such classes were a
    third of what a pool took to start.
Guarantees
    * The classes are dataclasses: to ``fields``, ``replace``, ``asdict``, to ``match``, and to type checkers.
    * Calling one costs what it always does: ``__init__`` is compiled when it is first looked up. The other methods are
      the same few for all classes, and slower than compiled ones.
Assumptions
    Fields without options of their own but for a default. ``frozen``, ``slots`` and ``eq`` are all that is ever asked.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, *, frozen=False, slots=False, eq=True):
        """As ``dataclasses.dataclass``."""
        if cls is None:
            return lambda cls: dataclass(cls, frozen=frozen, slots=slots, eq=eq)
        methods = {"__init__": _Init(cls, frozen), "__repr__": _repr}
        if eq:
            methods |= {"__eq__": _eq, "__hash__": _hash if frozen else None}
        if frozen:
            methods |= {"__setattr__": _refuse, "__delattr__": _refuse}
        if frozen and slots:
            methods |= {"__reduce__": _reduce}
        for name, method in methods.items():
            if name not in cls.__dict__ or (name == "__hash__" and cls.__dict__[name] is None):
                setattr(cls, name, method)
        made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
        made.__dataclass_params__.frozen = frozen  # for those who inherit from it
        return made


class _Init:
    """``__init__``, until it is first looked up."""

    def __init__(self, cls: type, frozen: bool) -> None:
        self._cls = cls
        self._frozen = frozen

    def __set_name__(self, cls: type, name: str) -> None:
        self._cls = cls  # slots are given to a class by making it anew

    def __get__(self, instance: Any, owner: type) -> Any:
        # The class is not asked of ``owner``: to ``inspect`` the class is the instance, since Python 3.13.
        init = _compile_init(self._cls, frozen=self._frozen)
        self._cls.__init__ = init  # type: ignore[misc]
        return init.__get__(instance, owner)


def _compile_init(cls: type, *, frozen: bool) -> Any:
    scope: dict[str, Any] = {"_set": object.__setattr__, "_missing": dataclasses.MISSING}
    parameters, body = ["self"], []
    for number, field in enumerate(dataclasses.fields(cls)):
        name = value = field.name
        parameter = name
        if field.default is not dataclasses.MISSING:
            scope[f"_{number}"], parameter = field.default, f"{name}=_{number}"
        elif field.default_factory is not dataclasses.MISSING:
            scope[f"_{number}"], parameter = field.default_factory, f"{name}=_missing"
            value = f"_{number}() if {name} is _missing else {name}"
        parameters.append(parameter)
        body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    exec(f"def __init__({', '.join(parameters)}):\n " + "\n ".join(body or ["pass"]), scope)
    init = scope["__init__"]
    init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    return init


def _names(self: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(self)]


def _values(self: Any) -> list[Any]:
    return [getattr(self, name) for name in _names(self)]


def _reduce(self: Any) -> tuple[Any, ...]:
    # Every request and answer is one or holds one: by its constructor it is pickled and read in half the time.
    return type(self), tuple([getattr(self, name) for name in self.__slots__])


def _repr(self: Any) -> str:
    shown = (f"{name}={value!r}" for name, value in zip(_names(self), _values(self), strict=True))
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _eq(self: Any, other: object) -> bool:
    return _values(self) == _values(other) if type(other) is type(self) else NotImplemented


def _hash(self: Any) -> int:
    return hash(tuple(_values(self)))


def _refuse(self: Any, name: str, *value: Any) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot {'assign to' if value else 'delete'} field {name!r}")
