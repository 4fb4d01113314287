"""Resolves names to models: the models' own names, aliases, and patterns of aliases."""

from collections.abc import Iterable

from node.protocol.models import near_names
from node.protocol.ollama.models import untagged
from registry.records import AliasRecord, AliasTarget
from router.errors import ModelBroken, UnknownModel
from router.fleet.fleet import Fleet
from router.types import ModelRoute, Target
from serving.short_names import ShortNames, ambiguous

NAME_CHARS = 200
"""Longest part of an unknown name that is compared or repeated in a message."""
MOST_SHORT = 8
"""Most sets of names whose short names are kept."""
ANY = "*"
"""Matches any text, in a pattern."""


Patterns = tuple[str, ...]
"""Names of models and aliases, and patterns of such names."""


class Names:
    """Owner of the aliases."""

    def __init__(self, fleet: Fleet, aliases: Iterable[AliasRecord] = ()) -> None:
        self._fleet = fleet
        self._aliases: dict[str, AliasRecord] = {}
        self._patterns: tuple[str, ...] = ()
        """Aliases that are patterns, those with the longest literal text first."""
        self._short: dict[frozenset[str], ShortNames] = {}
        """Short names of the sets of names that were needed last."""
        for alias in aliases:
            self.put(alias)

    def put(self, alias: AliasRecord) -> None:
        self._aliases[alias.name] = alias
        self._sort()

    def remove(self, name: str) -> None:
        self._aliases.pop(name, None)
        self._sort()

    def _sort(self) -> None:
        patterns = filter(is_pattern, self._aliases)
        self._patterns = tuple(sorted(patterns, key=lambda name: (-literal_chars(name), name)))

    @property
    def aliases(self) -> tuple[AliasRecord, ...]:
        """All aliases, patterns included."""
        return tuple(self._aliases.values())

    def route(self, name: str, allowed: Patterns | None = None) -> ModelRoute:
        """The targets of a name, or of the one that it is short for. Raises `ModelBroken`, or
        `UnknownModel` with similar names, also for a name that is not `allowed`, if that is not
        None."""
        if allowed is not None:
            return self._route_within(name, allowed)
        return self._whole(name) or self.route(self._meant(name, None))

    def _whole(self, name: str) -> ModelRoute | None:
        """The targets of a whole name; None if it is neither a model nor an alias. Raises
        `ModelBroken`, and `UnknownModel` if nobody can have its targets."""
        if name not in self._aliases and name in self._fleet.models:
            return ModelRoute((Target(name),))
        alias = self._find(name)
        route = (
            ModelRoute((self.target(AliasTarget(name)),)) if alias is None else self.route_of(alias)
        )
        if alias is None and route.targets[0].is_paid:
            raise UnknownModel(
                f"Only a paid server has the model {name!r}; an administrator can make an alias "
                "for it with `router alias set`.",
                param="model",
            )
        if any(target.is_known for target in route.targets):
            return route
        if broken := self._broken(route):
            raise broken
        if alias is not None:
            raise self.unknown(name)
        return None

    def untagged(self, name: str) -> str:
        """The model or alias that a client means by a name with or without the tag `latest`; the
        name itself if it is none."""
        return untagged(name, lambda each: each in self._aliases or each in self._fleet.models)

    def _route_within(self, name: str, allowed: Patterns) -> ModelRoute:
        """The targets of a name for a caller to whom all names but those allowed are unknown."""
        if may_use(name, allowed):
            try:
                if (route := self._whole(name)) is not None:
                    return route
            except UnknownModel:
                raise self.unknown(name, allowed) from None
        # The patterns are about the whole name: what is short for one that they allow is allowed.
        return self.route(self._meant(name, allowed))

    def _meant(self, name: str, allowed: Patterns | None) -> str:
        """The listed name that a name is short for. Raises `UnknownModel`."""
        names = frozenset(self.listed(allowed))
        if names not in self._short:
            if len(self._short) >= MOST_SHORT:
                self._short.clear()
            self._short[names] = ShortNames(names)
        found = self._short[names].find(name)
        if len(found) == 1 and found[0] != name:
            return found[0]
        if len(found) > 1:
            raise UnknownModel(ambiguous(name, found), param="model")
        raise self.unknown(name, allowed)

    def resolve(self, name: str) -> str:
        """The first known model of a name. Raises like `route`."""
        return first_known(self.route(name)).model

    def route_of(self, alias: AliasRecord) -> ModelRoute:
        targets = tuple(map(self.target, alias.targets))
        return ModelRoute(targets, alias.name, alias.selector, alias.spill_at or 1)

    def target(self, given: AliasTarget) -> Target:
        """Resolves a target with the fleet's current models; `MODEL@NODE` is a model on one
        node."""
        text = given.model
        if text in self._fleet.models:
            return Target(text, defaults=given.defaults)
        if text in self._fleet.paid_models:
            return Target(text, is_paid=True, defaults=given.defaults)
        model, _, node = text.rpartition("@")
        view = self._fleet.by_name(node) if model else None
        if view is not None and model in view.model_names():
            return Target(model, view.node_id, view.is_paid, defaults=given.defaults)
        return Target(text, is_known=False, defaults=given.defaults)

    def listed(self, allowed: Patterns | None = None) -> set[str]:
        """All names that a client can choose: models, and aliases with a known target, without
        patterns; only those `allowed`, if that is not None."""
        aliases = {
            alias.name
            for alias in self._aliases.values()
            if not is_pattern(alias.name)
            and any(target.is_known for target in self.route_of(alias).targets)
        }
        names = aliases | self._fleet.models
        return names if allowed is None else {name for name in names if may_use(name, allowed)}

    def _find(self, name: str) -> AliasRecord | None:
        """The alias of a name that is no model's own; None if there is none."""
        alias = self._aliases.get(name) if not is_pattern(name) else None
        if alias is not None or len(name) > NAME_CHARS:
            return alias
        fitting = (each for each in self._patterns if fits(each, name))
        found = next(fitting, None)
        return self._aliases[found] if found is not None else None

    def _broken(self, route: ModelRoute) -> ModelBroken | None:
        """An error if the only nodes that have a target have damaged files of it; None if none has
        any."""
        for target in route.targets:
            why = [(view.name, view.broken(target.model)) for view in self._fleet.snapshot]
            reasons = [f"on {node}: {reason}" for node, reason in why if reason]
            if reasons:
                words = " ".join(reasons)
                return ModelBroken(f"{target.model!r} cannot be served {words}", param="model")
        return None

    def unknown(self, name: str, allowed: Patterns | None = None) -> UnknownModel:
        """The error for a name that no node has, or that the caller may not use, with similar
        names."""
        shown = name[:NAME_CHARS]
        near = near_names(shown, sorted(self.listed(allowed)))
        hint = f" Did you mean {', '.join(near)}?" if near else ""
        if allowed is not None:
            return UnknownModel(
                f"There is no model {shown!r} for this API key; `GET /v1/models` lists those that "
                f"it may use.{hint}",
                param="model",
            )
        return UnknownModel(f"No node of the fleet has the model {shown!r}.{hint}", param="model")


def may_use(name: str, patterns: Patterns) -> bool:
    """True if the name is one of these, or matches a pattern of them."""
    return any(name == each or (is_pattern(each) and fits(each, name)) for each in patterns)


def first_known(route: ModelRoute) -> Target:
    """The first target that some node has, else the first one."""
    return next((target for target in route.targets if target.is_known), route.targets[0])


def is_pattern(name: str) -> bool:
    return ANY in name


def literal_chars(pattern: str) -> int:
    return len(pattern) - pattern.count(ANY)


def fits(pattern: str, name: str) -> bool:
    """True if the name matches the pattern."""
    first, *middle, last = pattern.split(ANY)
    if not name.startswith(first) or not name.endswith(last):
        return False
    at, end = len(first), len(name) - len(last)
    for part in middle:
        found = name.find(part, at, max(at, end))
        if found < 0:
            return False
        at = found + len(part)
    return at <= end
