"""Token ids without a tokenizer."""

import pytest

from node.errors import ContextTooLong
from node.prompt.prompt import Prompt
from node.prompt.scripted_tokens import ScriptedRenderer
from node.protocol.overflow import Overflow
from tests.node.prompt.words import chat, completion


def test_token_ids_pass_as_they_are() -> None:
    assert ScriptedRenderer().render(completion((6, 7))) == Prompt((6, 7))


def test_scripted_tokens_stand_for_four_characters_each() -> None:
    renderer = ScriptedRenderer()
    short = renderer.render(chat(("user", "abcd"))).tokens
    long = renderer.render(chat(("user", "abcd"), ("user", "efghi"))).tokens
    assert len(short) == 1
    assert len(long) == 3
    assert long[:1] == short
    shared = renderer.render_shared(chat(("user", "abcd")))
    assert renderer.render(completion("abcd")).tokens == shared.tokens
    assert renderer.render(completion("abcd")).tokens == short
    assert len(renderer.render(completion("")).tokens) == 1


def test_a_prompt_beyond_the_context_is_refused_with_a_number() -> None:
    for request in (chat(("user", "abcd" * 9)), completion("abcd" * 9), completion((1,) * 9)):
        with pytest.raises(ContextTooLong) as caught:
            ScriptedRenderer().render(request, 9)
        assert caught.value.overflow == Overflow(9, 9)
        assert len(ScriptedRenderer().render(request, 10).tokens) == 9
