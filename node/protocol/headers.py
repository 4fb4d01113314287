"""Names of the headers between a router and a node agent."""

HEADER_PROTOCOL = "x-fleet-protocol"
HEADER_REQUEST_ID = "x-request-id"
HEADER_REQUESTED_MODEL = "x-fleet-requested-model"
"""The name in the client's request. The agent writes it in its responses in place of the model's
own."""
HEADER_ORIGIN = "x-fleet-origin"
"""`<router id>/<key id>`. The agent does not interpret it, and repeats it in `Finished.origin`."""

HEADER_PROOF = "x-fleet-proof"
"""Proof that the router gave this request to this node. The agent does not interpret it, and
repeats it in `Finished.proof`."""

HEADER_IGNORED = "x-fleet-ignored"
"""Response header: paths of fields in the request's body that were ignored."""

HEADER_SALT = "x-fleet-salt"
"""Salt that separates the client's prefixes from those of other clients; most clients have none."""

HEADER_PROMPT_TOKENS = "x-fleet-prompt-tokens"
HEADER_CACHED_TOKENS = "x-fleet-cached-tokens"
"""Response headers: the prompt's length in tokens, and the number of them found in the prefix
cache."""

HEADER_TICKET = "x-fleet-ticket"
"""Permission to copy one model's files from this agent."""
