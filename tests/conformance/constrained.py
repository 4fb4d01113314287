"""Answers constrained by JSON schemas, of a model of random weights: what ends must be valid."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator, ValidationError
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.jsonschema import DRAFT202012

from node.ipc.generate import Constraint, ConstraintKind, GenerateRequest
from node.protocol.messages import FinishReason
from tests.conformance.corpus import read_lines
from tests.conformance.random_model import Drawn, RandomModel, with_random_model
from tests.conformance.result import Result

MOST_REFUSED = 0.15
"""Largest share of JSONSchemaBench that may be refused."""
MOST_CUT = 0.05
MAX_TOKENS = 1000
_FOLDER = "json_schema"
_SUITE = "json_schema_test_suite_draft2020-12.jsonl"
_REMOTES = "json_schema_test_suite_remotes.json"
_BENCH = "jsonschemabench_sample.jsonl"


@dataclass(slots=True)
class Outcome:
    """The results of the schemas of one set."""

    valid: int = 0
    cut: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)
    """(name, reason)."""
    invalid: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    """Schemas that the validator cannot apply."""

    @property
    def ended(self) -> int:
        return self.valid + len(self.invalid)

    @property
    def total(self) -> int:
        return self.ended + self.cut + len(self.refused) + len(self.unchecked)


def check_constrained(corpus: Path) -> list[tuple[str, Result]]:
    """JSONSchemaBench's sample, and the test suite."""
    folder = corpus / _FOLDER
    if not (folder / _BENCH).is_file() or not (folder / _SUITE).is_file():
        return [("constraining schemas", Result(skipped=f"there are no schemas in {folder}"))]
    bench = {row["id"]: row["schema"] for row in read_lines(folder / _BENCH)}
    suite = {
        f"{row['file']}: {row['description']} ({at})": row["schema"]
        for at, row in enumerate(read_lines(folder / _SUITE))
    }
    remotes = json.loads((folder / _REMOTES).read_text()) if (folder / _REMOTES).is_file() else {}
    of_bench, of_suite = with_random_model(
        lambda model: (draw_all(model, bench, remotes), draw_all(model, suite, remotes))
    )
    return [
        ("constraining schemas of JSONSchemaBench", _of_bench(of_bench)),
        ("constraining schemas of the test suite", _of_suite(of_suite)),
    ]


def draw_all(model: RandomModel, schemas: Mapping[str, Any], remotes: Mapping[str, Any]) -> Outcome:
    """An answer under each schema."""
    requests = [
        GenerateRequest(
            uid=name,
            tokens=model.prompt(),
            max_tokens=MAX_TOKENS,
            sampling=model.sampling(seed),
            constraint=Constraint(ConstraintKind.JSON_SCHEMA, "schema", json.dumps(schema)),
        )
        for seed, (name, schema) in enumerate(schemas.items())
    ]
    outcome = Outcome()
    for name, drawn in model.draw(requests).items():
        _count(outcome, name, drawn, _validator(schemas[name], remotes))
    return outcome


def _count(outcome: Outcome, name: str, drawn: Drawn, validator: Any) -> None:
    if drawn.refused is not None:
        outcome.refused.append((name, drawn.refused.reason))
    elif drawn.finish is FinishReason.LENGTH:
        outcome.cut += 1
    elif drawn.finish is not FinishReason.STOP:
        outcome.invalid.append(f"{name}: {drawn.error}")
    else:
        text = drawn.text()
        try:
            validator.validate(json.loads(text))
            outcome.valid += 1
        except re.error:
            # Python has no such patterns.
            outcome.unchecked.append(name)
        except (ValueError, ValidationError) as error:
            outcome.invalid.append(f"{name}: {str(error).splitlines()[0][:100]} of {text[:100]!r}")


def _validator(schema: Any, remotes: Mapping[str, Any]) -> Any:
    kind: Any = validator_for(schema, default=Draft202012Validator)
    registry: Any = Registry().with_resources(
        (url, DRAFT202012.create_resource(document)) for url, document in remotes.items()
    )
    return kind(schema, registry=registry, format_checker=kind.FORMAT_CHECKER)


def _of_bench(outcome: Outcome) -> Result:
    result = _result(outcome)
    refused, cut = len(outcome.refused) / outcome.total, outcome.cut / outcome.total
    if refused > MOST_REFUSED:
        result.failing.append(f"{refused:.1%} refused, of {MOST_REFUSED:.0%} at most")
    if cut > MOST_CUT:
        result.failing.append(f"{cut:.1%} cut, of {MOST_CUT:.0%} at most")
    return result


def _of_suite(outcome: Outcome) -> Result:
    return _result(outcome)


def _result(outcome: Outcome) -> Result:
    """Passed: those that are valid, of those that reached their end."""
    result = Result(passed=outcome.valid, total=outcome.ended, failing=list(outcome.invalid))
    total = max(outcome.total, 1)
    result.notes.append(
        f"of {outcome.total}: {outcome.cut} cut by max_tokens ({outcome.cut / total:.1%}), "
        f"{len(outcome.refused)} refused ({len(outcome.refused) / total:.1%})"
    )
    if outcome.unchecked:
        result.notes.append(
            f"{len(outcome.unchecked)} with patterns that the validator does not know"
        )
    result.notes += [f"refused {count}: {why}" for why, count in _reasons(outcome.refused)]
    return result


def _reasons(refused: Sequence[tuple[str, str]]) -> list[tuple[str, int]]:
    counted = Counter(reason[:90] for _, reason in refused)
    return counted.most_common()
