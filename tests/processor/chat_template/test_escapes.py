"""A chat template is foreign code in a sandbox: nothing of Python's own is within its reach."""

from __future__ import annotations

from pathlib import Path

import pytest

from packidx.errors import BadRecord, OptionError, SourceError
from packidx.processor.chat_template.chat_template import ChatTemplate
from packidx.records.conversation import Conversation, Turn

TALK = Conversation((Turn("user", ("hello",)), Turn("assistant", ("good day",))))
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
PLAIN = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\ngood day<|im_end|>\n"

ATTACKS = {
    "subclasses": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "attr": "{{ ''|attr('__class__') }}",
    "attr of a method": "{{ ('{0.__class__}'|attr('format'))(1) }}",
    "format": "{{ '{0.__class__.__mro__}'.format('') }}",
    "format by its name": "{% set f = '{0.__class__}'.format %}{{ f(1) }}",
    "format_map": "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "cycler": "{{ cycler.__init__.__globals__.os.mkdir('pwned') }}",
    "lipsum": "{{ lipsum.__globals__['os'].mkdir('pwned') }}",
    "joiner": "{{ joiner.__init__.__globals__.os.mkdir('pwned') }}",
    "namespace": "{{ namespace.__init__.__globals__ }}",
    "self": "{{ self._TemplateReference__context.cycler.__init__.__globals__.os.mkdir('pwned') }}",
    "raise_exception": "{{ raise_exception.__globals__ }}",
    "its closure": "{{ raise_exception.__closure__ }}",
    "strftime_now": "{{ strftime_now.__globals__ }}",
    "a macro": "{% macro m() %}{% endmacro %}{{ m.__call__.__globals__ }}",
    "a caller": "{% macro m() %}{{ caller.__init__.__globals__ }}{% endmacro %}"
    "{% call m() %}{% endcall %}",
    "a loop": "{% for i in [1] %}{{ loop._iterator.__class__ }}{% endfor %}",
    "map": "{{ [1]|map(attribute='__class__')|list }}",
    "map of a filter": "{{ ['x']|map('attr', '__class__')|list }}",
    "a path of names": "{{ [messages]|map(attribute='__class__.__mro__')|list }}",
    "groupby": "{{ [1]|groupby('__class__')|list }}",
    "sort": "{{ [1, 2]|sort(attribute='__class__.__name__') }}",
    "sum": "{{ [1]|sum(attribute='__class__', start='') }}",
    "dict": "{{ dict.__base__.__subclasses__() }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import '/etc/passwd' as x %}{{ x }}",
    "extends": "{% extends '/etc/passwd' %}",
    "a list of ours": "{{ messages.append(1) }}",
    "a message of ours": "{{ messages[0].update({'role': 'x'}) }}",
    "in a generation": "{% generation %}{{ ''.__class__ }}{% endgeneration %}",
}
WORDS = ("<class", "<function", "<module", "built-in", "root:", "packidx.", "jinja2.", "pwned")
"""What a template would print of Python if it came that far."""


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_no_template_reaches_python(
    attack: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        text = str(ChatTemplate(CHATML + attack).render(TALK).text)
    except (BadRecord, OptionError, SourceError):
        text = PLAIN
    assert text.startswith(PLAIN)
    assert not [word for word in WORDS if word in text]
    assert list(tmp_path.iterdir()) == []
