"""Calls as a JSON list behind `functools`: FireFunction 2."""

from node.parsing.json_calls import JsonCalls

FIREFUNCTION = JsonCalls("firefunction", ("functools[",))
