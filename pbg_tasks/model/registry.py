"""Parts of a model by their names in a config.

Operators, comparators, losses and regularizers are built in, or belong to installed packages. A package's parts are
entry points: a subclass of the base class, an instance of one, or, except for operators, only the forward function.
They are tried on a few numbers when they are loaded, so that a mistake shows before training.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, TypeVar

from pbg_tasks.config import registry as names
from pbg_tasks.config.comparators import facts_of
from pbg_tasks.model import probes
from pbg_tasks.model.comparators import BFLOAT16, COMPARATORS, Biased, Comparator, ForwardComparator
from pbg_tasks.model.losses import LOSSES, ForwardLoss, Loss
from pbg_tasks.model.operators import OPERATORS, Operator
from pbg_tasks.model.regularizers import REGULARIZERS, ForwardRegularizer, Regularizer
from pbg_tasks.plugins import PluginError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from pbg_tasks.config.comparators import Facts
    from pbg_tasks.model.losses import LossFunction
    from pbg_tasks.plugins import Kind

Made = TypeVar("Made")


def operator(name: str) -> Operator:
    """Return the operator of a name.

    Raises:
        ConfigError: there is none, or the package that adds it is at fault.
    """
    return OPERATORS[name] if name in OPERATORS else _installed_operator(name)


def comparator(name: str, *, bias: bool, bfloat16: bool = False) -> Comparator:
    """Return the comparator of a name.

    Args:
        name: of a built-in one or of a package's.
        bias: with dimension 0 as a bias.
        bfloat16: with products of bfloat16 numbers; dot and cos only.

    Raises:
        ConfigError: there is none, or the package that adds it is at fault.
    """
    built_in = BFLOAT16 if bfloat16 else COMPARATORS
    base = built_in[name] if name in built_in else _installed_comparator(name)
    return Biased(base) if bias else base


def comparator_facts(name: str) -> Facts:
    """Return the facts about a comparator.

    They are unknown for one that is not installed.

    Raises:
        ConfigError: the package that adds it is at fault.
    """
    if name in COMPARATORS or name not in names.COMPARATORS.names():
        return facts_of(name)
    return _installed_comparator(name).facts


def loss(name: str) -> LossFunction:
    """Return the loss of a name.

    Raises:
        ConfigError: there is none, or the package that adds it is at fault.
    """
    return LOSSES[name] if name in LOSSES else _installed_loss(name)


def regularizer(name: str) -> Regularizer:
    """Return the regularizer of a name.

    Raises:
        ConfigError: there is none, or the package that adds it is at fault.
    """
    return REGULARIZERS[name] if name in REGULARIZERS else _installed_regularizer(name)


def initial(name: str, dimension: int) -> dict[str, Tensor]:
    """Return new parameters of one relation with the operator of this name.

    Raises:
        ConfigError: there is no such operator, or it does not work for this dimension.
    """
    if name not in OPERATORS:
        _probe_operator(name, dimension)
    return {key: value.detach().clone() for key, value in operator(name).initial(dimension).items()}


@cache
def parameter_names(name: str, dimension: int) -> tuple[str, ...]:
    """Return the names of one relation's parameters."""
    return tuple(operator(name).initial(dimension))


@cache
def _probe_operator(name: str, dimension: int) -> None:
    with names.OPERATORS.blamed(name):
        probes.check_operator(operator(name), dimension)


@cache
def _installed_operator(name: str) -> Operator:
    return _load(names.OPERATORS, name, Operator, None, lambda _: None)


@cache
def _installed_comparator(name: str) -> Comparator:
    return _load(names.COMPARATORS, name, Comparator, ForwardComparator, probes.check_comparator)


@cache
def _installed_loss(name: str) -> Loss:
    return _load(names.LOSSES, name, Loss, ForwardLoss, probes.check_loss)


@cache
def _installed_regularizer(name: str) -> Regularizer:
    return _load(names.REGULARIZERS, name, Regularizer, ForwardRegularizer, probes.check_regularizer)


def _load(
    kind: Kind,
    name: str,
    base: type[Made],
    wrap: Callable[[Callable[..., Tensor]], Made] | None,
    check: Callable[[Made], None],
) -> Made:
    """Import an entry point, make it a ``base``, and try it."""
    point = kind.entry_point(name)
    with kind.blamed(name):
        found = point.load()
        if isinstance(found, type) and issubclass(found, base):
            found = found()
        elif wrap is not None and callable(found) and not isinstance(found, (type, base)):
            found = wrap(found)
        if not isinstance(found, base):
            wanted = f"a subclass or an instance of {base.__module__}.{base.__name__}"
            raise PluginError(f"is {found!r}, not {wanted}" + (" or a forward function" if wrap else ""))
        check(found)
        return found
