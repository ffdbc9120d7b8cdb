#!/usr/bin/env python3
"""Writes features.json: what Python's Jinja prints for templates that use what chat templates use.

Run with Python 3 and jinja2 3.1; `python3 generate.py` in this folder rewrites the file.
The environment is set up as model authors' tools set it up: sandboxed, trim_blocks, lstrip_blocks,
loop controls, a plain-JSON `tojson`, `raise_exception`, `strftime_now`, a `generation` tag.
Each case has a name, a template, the messages and options, and the text or that it fails.
"""

import json
from datetime import datetime, timezone
from pathlib import Path

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

SOURCES = Path(__file__).parent / "../../../src/chat"
NOW = 1_785_585_600  # 2026-08-01 12:00:00 UTC


class Generation(Extension):
    """Lets `{% generation %}` pass."""

    tags = {"generation"}

    def parse(self, parser):
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.Scope(body, lineno=lineno)


class Raised(TemplateError):
    """The template's own refusal."""


def raise_exception(message):
    raise Raised(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = lambda f: datetime.fromtimestamp(NOW, timezone.utc).strftime(f)
    return env


def render(template, messages, options):
    context = {
        "messages": messages,
        "tools": None,
        "documents": None,
        "add_generation_prompt": True,
        "bos_token": "<bos>",
        "eos_token": "<eos>",
    } | options
    return environment().from_string(template).render(**context)


USER = [{"role": "user", "content": "Hi"}]
TALK = [
    {"role": "system", "content": "  Be brief.\n"},
    {"role": "user", "content": "What's 2 < 3 & \"so\"?"},
    {"role": "assistant", "content": "<think>easy</think>\n\nYes é 😀"},
    {"role": "user", "content": "And\tnow?"},
]
PARTS = [
    {"role": "user", "content": [{"type": "text", "text": " one "}, {"type": "image"}, {"type": "text", "text": "two"}]}
]
CALLS = [
    {"role": "user", "content": "Weather?"},
    {
        "role": "assistant",
        "content": "",
        "reasoning_content": "Look it up.",
        "tool_calls": [
            {
                "type": "function",
                "function": {
                    "name": "weather",
                    "arguments": {
                        "city": "Köln",
                        "days": 2,
                        "exact": True,
                        "limit": 1.5e-7,
                        "tags": ["a", None],
                        "empty": {},
                    },
                },
            }
        ],
    },
    {"role": "tool", "name": "weather", "content": "rain"},
    {"role": "tool", "name": "weather", "content": "sun"},
]
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells <the> weather & more; it's \"here\"",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 3}},
                "required": ["city"],
            },
        },
    }
]

CASES = []


def case(name, template, messages=USER, **options):
    try:
        result = {"text": render(template, messages, options)}
    except Raised as error:
        result = {"refused": str(error)}
    except Exception as error:  # any other failure: only that it fails is compared
        result = {"fails": type(error).__name__}
    CASES.append(
        {"name": name, "template": template, "messages": messages, "options": options} | result
    )


def snippet(template, **options):
    """An expression or a short template whose name is its text."""
    case(template, template, **options)


# Whitespace and syntax.
case("trim", "  {% if true %}\n  a\n  {% endif %}\n b {%- if true %} c {%+ endif %}\n", USER)
case("trailing newlines", "x\n\n", USER)
case("minus signs", "a  {{- 'b' -}}  c\n{#- note -#}\n d", USER)
case("raw", "{% raw %}{{ x }}{% endraw %}", USER)
case("generation", "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }}{% endgeneration %}\n{% else %}{{ m.content }}\n{% endif %}{% endfor %}", TALK)
case("generation minus", "x {%- generation -%} {{ messages[0].content }} {%- endgeneration -%} y", USER)

# Printing values.
for text in [
    "{{ true }} {{ false }} {{ none }} {{ nothing }}",
    "{{ 1 }} {{ 1.0 }} {{ 1 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ 2 ** 3 }}",
    "{{ 1.5e-7 }} {{ 1e16 }} {{ 1e16 | string }} {{ 0.1 + 0.2 }} {{ 1e300 * 1e300 }}",
    "{{ [1, 'a', true, none] }} {{ {'k': 'v', 'n': [1.5]} }} {{ (1, 'x') }}",
    "{{ 'a' ~ true ~ none ~ 1.5 ~ 3 }} {{ true | string }}",
    "{{ [\"it's\", 'say \"x\"'] }}",
    "{{ 'x' * 3 }} {{ [1] * 2 }} {{ [1] + [2] }} {{ 'a' + 'b' }}",
    "{{ '%s is %d' | format('x', 3) }}",
    "{{ 'a' in 'abc' }} {{ 1 in [1] }} {{ 'k' in {'k': 1} }} {{ 'z' not in 'abc' }}",
    "{{ 1 < 2 <= 2 }} {{ not 1 == 2 }} {{ 1 if false }}{{ 2 if true else 3 }}",
    "{{ 'abc'[1] }} {{ 'abc'[-1] }} {{ 'abcdef'[1:4] }} {{ 'abc'[::-1] }} {{ [1, 2, 3][1:] }} {{ [1, 2, 3][-2:] }}",
    "{{ {'a': 1}.a }} {{ {'a': 1}['a'] }} {{ {'a': 1}.b }}",
    "{{ messages | length }} {{ messages | count }} {{ messages[0].keys() | list }}",
    "{{ range(3) | list }} {{ range(1, 10, 4) | list }}",
    "{{ dict(a=1, b=2) }}",
    "{{ x is defined }} {{ x is undefined }} {{ x is none }} {{ tools is none }} {{ tools is defined }}",
    "{{ x | default('d') }} {{ '' | default('d', true) }} {{ none | default('d') }}",
    "{{ x.y }}",
    "{{ 'a' + 1 }}",
    "{{ 'a' + none }}",
    "{{ nothing() }}",
    "{{ 'x' | nosuchfilter }}",
]:
    snippet(text)

# Tests.
VALUES = ["none", "true", "1", "1.5", "'s'", "[]", "{}", "()", "nothing", "messages", "messages[0]", "range(2)"]
for test in ["string", "mapping", "sequence", "iterable", "number", "integer", "float", "boolean", "none", "defined", "true", "false"]:
    snippet(" ".join("{{ " + v + " is " + test + " }}" for v in VALUES))
snippet("{{ 3 is odd }} {{ 3 is even }} {{ 4 is divisibleby 2 }} {{ 1 is eq 1 }} {{ 1 is in [1] }} {{ 'a' is lower }} {{ 'A' is upper }} {{ 1 is not string }}")

# String methods.
for text in [
    "[{{ '  a b '.strip() }}] [{{ '  a '.lstrip() }}] [{{ ' a  '.rstrip() }}] [{{ 'xxaxy'.strip('x') }}] [{{ 'xyaxy'.lstrip('yx') }}] [{{ 'a\\n'.rstrip('\\n') }}]",
    "{{ 'a,b,,c'.split(',') }} {{ ' a  b '.split() }} {{ 'a,b,c'.split(',', 1) }} {{ 'a</think>b'.split('</think>')[-1] }} {{ ''.split(',') }} {{ ''.split() }}",
    "{{ 'a,b,c'.rsplit(',', 1) }} {{ 'a-b-c'.partition('-') }} {{ 'a-b-c'.rpartition('-') }} {{ 'abc'.partition('-') }} {{ 'abc'.rpartition('-') }}",
    "{{ 'abc'.startswith('ab') }} {{ 'abc'.endswith('bc') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.endswith('x') }}",
    "{{ 'aBc'.upper() }} {{ 'aBc'.lower() }} {{ 'hello wORLD it'.title() }} {{ 'hELLO'.capitalize() }}",
    "{{ 'aaa'.replace('a', 'b') }} {{ 'aaa'.replace('a', 'b', 2) }} {{ 'ab'.replace('', '-') }}",
    "{{ 'abcabc'.find('c') }} {{ 'abc'.find('x') }} {{ 'abcabc'.rfind('c') }} {{ 'abcabc'.count('bc') }} {{ ', '.join(['a', 'b']) }}",
    "{{ '12'.isdigit() }} {{ 'ab'.isalpha() }} {{ 'a1'.isalnum() }} {{ ' '.isspace() }} {{ 'ab'.islower() }} {{ 'AB'.isupper() }}",
    "{{ 'abc'.removeprefix('ab') }} {{ 'abc'.removesuffix('bc') }} {{ 'abc'.removeprefix('x') }}",
    "{{ 'a\\nb\\r\\nc'.splitlines() }} {{ 'a\\nb\\n'.splitlines(true) }}",
    "{{ '{} and {}'.format('a', 2) }} {{ '{0}{0}{x}'.format('a', x='b') }}",
    "{{ [1, 2, 1].count(1) }} {{ ['a', 'b'].index('b') }}",
    "{{ 'a'.nosuch() }}",
    "{{ 'a-b'.split('') }}",
    "{{ [1, 2].append(3) }}",
]:
    snippet(text)

# Dict methods.
for text in [
    "{{ {'a': 1}.get('a') }} {{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 2) }}",
    "{% for k, v in {'b': 1, 'a': [2]}.items() %}{{ k }}={{ v }};{% endfor %}",
    "{{ {'b': 1, 'a': 2}.keys() | list }} {{ {'b': 1, 'a': 2}.values() | list }}",
    "{% for k, v in {'b': 1, 'a': 2} | items %}{{ k }}={{ v }};{% endfor %}{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{% for k in {'b': 1, 'a': 2} %}{{ k }}{% endfor %}",
]:
    snippet(text)

# Filters.
for text in [
    "{{ ' a ' | trim }} {{ 'ab' | upper }} {{ 'AB' | lower }} {{ 'hello world' | title }} {{ 'hello' | capitalize }}",
    "{{ [3, 1, 2] | sort }} {{ [3, 1, 2] | sort(reverse=true) }} {{ [1, 2] | first }} {{ [1, 2] | last }} {{ [1, 2] | reverse | list }} {{ 'abc' | reverse }}",
    "{{ ['a', 'b'] | join(', ') }} {{ [1, 2] | sum }} {{ [1, 5] | max }} {{ [1, 5] | min }} {{ [1, 1, 2] | unique | list }}",
    "{{ '3' | int + 1 }} {{ 'x' | int(7) }} {{ '1.5' | float }} {{ -3 | abs }} {{ 2.567 | round(1) }} {{ 2.5 | round | int }}",
    "{{ 'a\\nb' | indent(2) }} {{ 'a\\nb' | indent(2, true) }} {{ 'abc' | replace('b', 'x') }} {{ '<a>' | e }} {{ '<a>' | safe }}",
    "{{ 'abc' | list }} {{ 'abc' | length }} {{ messages | map(attribute='role') | list }} {{ ['a'] | map('upper') | list }}",
    "{{ [1, 2, 3, 4] | select('even') | list }} {{ [1, 2, 3] | reject('odd') | list }} {{ [0, 1, ''] | select | list }}",
    "{{ [1, 2, 3] | batch(2) | list }} {{ ['b', 'a'] | sort | join }}",
    "{{ messages | selectattr('role', 'equalto', 'user') | list | length }} {{ messages | rejectattr('role', '==', 'user') | list | length }} {{ messages | selectattr('x', 'defined') | list | length }}",
]:
    snippet(text)

# JSON.
ODD = {"a": "é\"\\\n\t\b\f\r\x01\x7f/<>&'", "n": None, "b": [True, False], "f": 0.1, "i": 10**12, "e": {}, "l": []}
for text in [
    "{{ odd | tojson }}",
    "{{ odd | tojson(indent=2) }}",
    "{{ odd | tojson(indent=0) }}",
    "{{ odd | tojson(ensure_ascii=true) }}",
    "{{ odd | tojson(separators=(',', ':')) }}",
    "{{ odd | tojson(separators=[',', ':'], sort_keys=true) }}",
    "{{ odd | tojson(sort_keys=true, indent=1) }}",
    "{{ '\U0001f600' | tojson(true) }}",
    "{{ {1: 2, true: 3, none: 4} | tojson }} {{ (1, 2) | tojson }} {{ 1e20 | tojson }} {{ 's' | tojson }} {{ none | tojson }}",
    "{{ [1.0, 1e-5, 1e16, 123456789.125] | tojson }}",
    "{{ nothing | tojson }}",
    "{{ odd | tojson(nosuch=1) }}",
]:
    case(text, text, USER, odd=ODD)

# Statements.
case("loop", "{% for m in messages %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.length }}/{{ loop.revindex }} {{ loop.first }} {{ loop.last }} {{ loop.previtem.role if loop.previtem }} {{ loop.nextitem.role if loop.nextitem is defined }}\n{% else %}none{% endfor %}", TALK)
case("loop else", "{% for m in [] %}x{% else %}empty{% endfor %}", USER)
case("loop filter", "{% for m in messages if m.role == 'user' %}{{ loop.index }}{{ m.content }};{% endfor %}", TALK)
case("break and continue", "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }};{% if m.role == 'assistant' %}{% break %}{% endif %}{% endfor %}", TALK)
case("reverse", "{% for m in messages[::-1] %}{{ loop.index0 }}{{ m.role }} {% endfor %}{% for m in messages | reverse %}{{ m.role }} {% endfor %}", TALK)
case("namespace", "{% set ns = namespace(last=-1, found=false) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% set ns.found = true %}{% endif %}{% endfor %}{{ ns.last }} {{ ns.found }}", TALK)
case("scopes", "{% set x = 1 %}{% for i in [1, 2] %}{% set x = x + i %}{{ x }}{% endfor %}{{ x }}{% if true %}{% set x = 9 %}{% endif %}{{ x }}", USER)
case("set block", "{% set x %}a{{ 1 }}{% endset %}[{{ x }}]{% set a, b = 1, 2 %}{{ a }}{{ b }}", USER)
case("macro", "{% macro f(a, b='d') %}<{{ a }}|{{ b }}>{% endmacro %}{{ f(1) }}{{ f(1, b=2) }}", USER)
case("macro recursion", "{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}", USER)
case("call block", "{% macro box(t) %}[{{ t }}:{{ caller() }}]{% endmacro %}{% call box('x') %}in{% endcall %}", USER)
case("filter block", "{% filter upper %}abc{% endfilter %}", USER)
case("raise", "{% if messages[0].role != 'system' %}{{ raise_exception('need a system message, not ' + messages[0].role) }}{% endif %}", USER)
case("raise in a macro", "{% macro f() %}{{ raise_exception('deep') }}{% endmacro %}{% for m in messages %}{{ f() }}{% endfor %}", USER)
case("date", "{{ strftime_now('%d %b %Y') }} {{ strftime_now('%Y-%m-%d %H:%M:%S %A %B %j') }}", USER)
case("options", "{{ enable_thinking }} {{ enable_thinking is defined and enable_thinking is false }} {{ add_generation_prompt }} {{ bos_token }}{{ eos_token }} {{ custom.list[1] }}", USER, enable_thinking=False, custom={"list": [1, "two"]})
case("no such option", "{% if enable_thinking is defined and enable_thinking is false %}off{% else %}on{% endif %}{{ add_generation_prompt }}", USER, add_generation_prompt=False)

# Whole templates, in the manner of published ones.
THINKING = """{%- macro body(content) -%}
    {%- if content is string -%}
        {{- content -}}
    {%- elif content is iterable and content is not mapping -%}
        {%- for part in content -%}
            {%- if part is mapping and 'text' in part -%}
                {{- part.text -}}
            {%- elif part.type == 'image' -%}
                {{- '<|image|>' -}}
            {%- else -%}
                {{- raise_exception('unexpected part ' ~ part) -}}
            {%- endif -%}
        {%- endfor -%}
    {%- endif -%}
{%- endmacro -%}
{%- if tools %}
    {{- '<|turn|>system\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools><|end|>\\n' }}
{%- endif %}
{%- set state = namespace(scan=true, query=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set i = (messages | length - 1) - loop.index0 %}
    {%- if state.scan and message.role == 'user' and not (body(message.content).startswith('<response>') and body(message.content).endswith('</response>')) %}
        {%- set state.scan = false %}
        {%- set state.query = i %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = body(message.content) | trim %}
    {%- if message.role == 'system' and not loop.first %}
        {{- raise_exception('System message must be at the beginning.') }}
    {%- elif message.role in ('user', 'system') %}
        {{- '<|turn|>' + message.role + '\\n' + content + '<|end|>' + '\\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|turn|>assistant\\n' }}
        {%- if loop.index0 > state.query %}
            {{- '<think>\\n' + reasoning.strip() + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content }}
        {%- for call in message.tool_calls | default([]) %}
            {%- set call = call.function if call.function is defined else call %}
            {{- '\\n<call>\\n<function=' + call.name + '>' }}
            {%- for key, value in call.arguments | items %}
                {{- '\\n<parameter=' + key + '>\\n' }}
                {%- set value = value | tojson if value is mapping or (value is sequence and value is not string) else value | string %}
                {{- value + '\\n</parameter>' }}
            {%- endfor %}
            {{- '\\n</function>\\n</call>' }}
        {%- endfor %}
        {{- '<|end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.previtem and loop.previtem.role != 'tool' %}
            {{- '<|turn|>user' }}
        {%- endif %}
        {{- '\\n<response>\\n' ~ content ~ '\\n</response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}
            {{- '<|end|>\\n' }}
        {%- endif %}
    {%- else %}
        {{- raise_exception('Unexpected message role: ' ~ message.role) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|turn|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- else %}
        {{- '<think>\\n' }}
    {%- endif %}
{%- endif %}"""
for name, messages in [("user", USER), ("talk", TALK), ("parts", PARTS), ("calls", CALLS), ("late system", USER + TALK), ("role", [{"role": "robot", "content": "x"}])]:
    case(f"thinking {name}", THINKING, messages)
case("thinking off with tools", THINKING, CALLS, tools=TOOLS, enable_thinking=False)
case("thinking without prompt", THINKING, TALK, add_generation_prompt=False)

DECLARATIONS = """{%- macro value(x, bare=false) -%}
    {%- if x is string -%}
        {{- x if bare else '`' + x + '`' -}}
    {%- elif x is boolean -%}
        {{- 'true' if x else 'false' -}}
    {%- elif x is mapping -%}
        {{- '{' -}}
        {%- for key, item in x | dictsort -%}
            {{- key -}}:{{- value(item) -}}{%- if not loop.last -%},{%- endif -%}
        {%- endfor -%}
        {{- '}' -}}
    {%- elif x is sequence -%}
        {{- '[' -}}
        {%- for item in x -%}{{- value(item) -}}{%- if not loop.last -%},{%- endif -%}{%- endfor -%}
        {{- ']' -}}
    {%- else -%}
        {{- x -}}
    {%- endif -%}
{%- endmacro -%}
{{ bos_token }}
{%- for tool in tools or [] -%}
    <tool>{{ tool.function.name }}{{ value(tool.function.parameters) }}{{ tool.function.parameters.type | upper }}</tool>
{% endfor -%}
{%- for m in messages if m.tool_calls -%}
    {%- for c in m.tool_calls -%}{{ value(c.function.arguments) }}{%- endfor -%}
{%- endfor -%}"""
case("declarations", DECLARATIONS, CALLS, tools=TOOLS)

for name in ["chatml", "gemma", "llama3"]:
    source = (SOURCES / f"{name}.jinja").read_text()
    for label, messages in [("user", USER), ("talk", TALK), ("parts", PARTS), ("two users", USER + USER), ("late system", TALK[1:3] + TALK[:1])]:
        case(f"{name} {label}", source, messages)
    case(f"{name} no prompt", source, TALK, add_generation_prompt=False)
    case(f"{name} tools", source, USER, tools=TOOLS)

names = [c["name"] for c in CASES]
assert len(names) == len(set(names)), "names repeat"
text = json.dumps({"now": NOW, "cases": CASES}, ensure_ascii=False, indent=1)
(Path(__file__).parent / "features.json").write_text(text + "\n")
