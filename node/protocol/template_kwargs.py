"""Chat template variables that neither clients nor administrators may set."""

RESERVED_KWARGS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "conversations",
        "messages",
        "return_assistant_tokens_mask",
        "tokenize",
        "tools",
    }
)
"""Names that a template gets from the agent, or that are arguments of the rendering function and no
variables."""
