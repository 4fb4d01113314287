"""What no client and no administrator sets of a chat template."""

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
"""What a template is told already, or is no variable of one."""
