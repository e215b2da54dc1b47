"""Chat templates of further families: what they write, in our words."""

from __future__ import annotations

# OpenGVLab/InternVL3-1B-hf
INTERNVL_TEMPLATE = """\
{% for message in messages %}
{{- '<|im_start|>' ~ message.role ~ '\\n' -}}
{%- if message.content is string -%}{{- message.content -}}{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}{{- '<IMG_CONTEXT>\\n' -}}
{%- elif part.type == 'video' -%}{{- '<video>\\n' -}}
{%- elif part.type == 'text' -%}{{- part.text -}}{%- endif -%}
{%- endfor -%}{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""

# What both GLM templates write for a user's parts.
_GLM_PARTS = """\
{%- macro parts_of(content) -%}
{%- if content is string -%}{{- content -}}{%- else -%}
{%- for part in content -%}
{%- if part.type == 'video' or 'video' in part -%}
{{- '<|begin_of_video|><|video|><|end_of_video|>' -}}
{%- elif part.type == 'image' or 'image' in part -%}
{{- '<|begin_of_image|><|image|><|end_of_image|>' -}}
{%- elif part.type == 'text' -%}{{- part.text -}}{%- endif -%}
{%- endfor -%}{%- endif -%}
{%- endmacro -%}
{{- '[gMASK]<sop>' -}}
"""
# zai-org/GLM-4.1V-9B-Thinking: nothing ends a turn but the next one.
GLM4V_TEMPLATE = f"""\
{_GLM_PARTS}
{{%- for message in messages -%}}
{{%- if message.role == 'system' -%}}{{{{- '<|system|>\\n' ~ message.content -}}}}
{{%- elif message.role == 'user' -%}}{{{{- '<|user|>\\n' ~ parts_of(message.content) -}}}}
{{%- elif message.role == 'assistant' -%}}{{{{- '<|assistant|>\\n' ~ message.content -}}}}
{{%- endif -%}}
{{%- endfor -%}}
{{%- if add_generation_prompt -%}}{{{{- '<|assistant|>\\n' -}}}}{{%- endif -%}}
"""
# zai-org/GLM-4.6V-Flash: answers are stripped, and thoughts kept after the last question only.
GLM46V_TEMPLATE = f"""\
{_GLM_PARTS}
{{%- set asked = namespace(last=-1) -%}}
{{%- for message in messages -%}}
{{%- if message.role == 'user' -%}}{{%- set asked.last = loop.index0 -%}}{{%- endif -%}}
{{%- endfor -%}}
{{%- for message in messages -%}}
{{%- if message.role == 'system' -%}}{{{{- '<|system|>\\n' ~ parts_of(message.content) -}}}}
{{%- elif message.role == 'user' -%}}{{{{- '<|user|>\\n' ~ parts_of(message.content) -}}}}
{{%- elif message.role == 'assistant' -%}}
{{%- set said = parts_of(message.content) -%}}{{%- set thought = '' -%}}
{{%- if '</think>' in said -%}}
{{%- set thought = said.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') -%}}
{{%- set said = said.split('</think>')[-1].lstrip('\\n') -%}}
{{%- endif -%}}
{{{{- '<|assistant|>\\n<think>' -}}}}
{{{{- thought.strip() if loop.index0 > asked.last else '' -}}}}{{{{- '</think>' -}}}}
{{{{- '\\n' ~ said.strip() if said.strip() else '' -}}}}
{{%- endif -%}}
{{%- endfor -%}}
{{%- if add_generation_prompt -%}}{{{{- '<|assistant|>' -}}}}{{%- endif -%}}
"""

# moonshotai/Kimi-K2.5: a line end after each medium, and no thoughts in what was said before.
KIMI_TEMPLATE = """\
{%- for message in messages -%}
{%- set kind = {'user': 'user', 'assistant': 'assistant'}[message.role] or 'system' -%}
{{- '<|im_' ~ kind ~ '|>' ~ (message.name or message.role) ~ '<|im_middle|>' -}}
{{- '<think></think>' if message.role == 'assistant' else '' -}}
{%- if message.content is string -%}{{- message.content -}}{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}
{{- '<|media_begin|>image<|media_content|><|media_pad|><|media_end|>\\n' -}}
{%- elif part.type == 'video' -%}{{- '<|kimi_k25_video_placeholder|>\\n' -}}
{%- else -%}{{- part.text -}}{%- endif -%}
{%- endfor -%}{%- endif -%}
{{- '<|im_end|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_assistant|>assistant<|im_middle|>' -}}{%- endif -%}
"""
