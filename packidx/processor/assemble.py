"""`ProcessorFiles`: a processor's tokenizer, template and settings, from files or an object."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

from packidx.digests import canonical_json, digest
from packidx.errors import MissingExtraError, PackidxError, SourceError
from packidx.processor.chat_template.chat_template import ChatTemplate
from packidx.processor.families import MediaModel, find_family
from packidx.processor.fingerprint import complete_settings, named_settings, normalise_tokenizer
from packidx.processor.labels import DEFAULT_POLICY, LabelPolicy
from packidx.records.conversation import Conversation


@dataclass(frozen=True, slots=True)
class Loaded:
    """A tokenizer and its settings that decide a sample's tokens."""

    tokenizer: Tokenizer | None
    """Neither padding nor truncating."""
    special_tokens: dict[str, str] = field(default_factory=dict)
    """By their names in templates."""
    limit: int | None = None
    """Number of tokens at which the processor truncates samples."""
    doubt: str | None = None
    """Why training may have another tokenizer; None if it has this one."""
    splits_special: bool = False
    """See `ProcessorFiles`."""


DEFAULT_TEMPLATE = "default"
_TOOL_USE = "tool_use"
"""Name of the template that tokenizers take for tools; processors take their default one."""
_LONG = ("tokenizer", "template", _TOOL_USE)  # shown as digests
_FACTS = (*_LONG, "end_of_text", "limit", "trusts_code")


@dataclass
class ProcessorFiles:
    """Data of a processor, without its code. Any part may be None. Picklable."""

    name: str
    tokenizer: Tokenizer | None
    """Neither padding nor truncating. Shared: it must not be changed."""
    template: ChatTemplate | None
    tool_template: ChatTemplate | None
    """Template of a tokenizer for records with tools, also an empty list; None if it has none."""
    vision: MediaModel | None
    image_settings: dict[str, Any] | None
    video_settings: dict[str, Any] | None
    own_settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the processor itself that change tokens."""
    bos_token: str | None = None
    pad_token: str | None = None
    eos_token: str | None = None
    """Token that ends a document."""
    policy: LabelPolicy = DEFAULT_POLICY
    limit: int | None = None
    """Number of tokens at which the real processor truncates samples."""
    doubt: str | None = None
    """Why training may make other tokens than these files say; None if it makes these."""
    trusts_code: bool = False
    """True if the folder has code of its own and it is run."""
    code: str | None = None
    """Digest of that code; None if unknown."""
    splits_special: bool = False
    """True if special tokens in texts are tokenized as plain text."""
    folder: str | None = None
    """Folder of the files; None for a processor object."""
    family: str | None = None
    """Name of its `Family`; None if no family counts it."""
    unknown: str | None = None
    """Why its media cannot be counted; None if they can."""
    lacks_package: bool = False
    """True if they cannot be counted because torch, or another package, is not installed."""
    keywords: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Settings given beside the folder, by part, as keywords of the part's class."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """The same settings by their full names: ``{"images.max_pixels": 602112}``."""
    older_names: tuple[str, ...] = ()
    """See `Family`."""

    @property
    def builds_all(self) -> bool:
        """True if every record is built, since the tokenizer has rules of its own."""
        return self.splits_special or self.trusts_code

    @property
    def is_probed(self) -> bool:
        """True if it takes media and no family of ours counts it."""
        return self.image_settings is not None and self.family is None

    def fingerprint(self) -> str:
        """Return the SHA-256 that must be equal where lengths are counted and samples are built."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return digest(canonical_json(self._content))

    @cached_property
    def _content(self) -> dict[str, Any]:
        tokenizer, template, policy = self.tokenizer, self.template, self.policy.describe()
        used = {k: v for t in (template, self.tool_template) if t for k, v in t.used_tokens.items()}
        if used:
            policy["special_tokens"] = used
        content: dict[str, Any] = {
            "tokenizer": None if tokenizer is None else normalise_tokenizer(tokenizer.to_str()),
            "template": None if template is None else _source(template),
            "image": self.image_settings,
            "video": self.video_settings,
            "policy": policy,
        }
        if self.tool_template is not None:
            content[_TOOL_USE] = _source(self.tool_template)
        if self.own_settings:
            content["own"] = self.own_settings
        if self.eos_token is not None:
            content["end_of_text"] = self.eos_token
        if self.limit is not None:
            content["limit"] = self.limit
        if self.trusts_code:
            content["trusts_code"] = self.code or True
        if self.splits_special:
            content["splits_special"] = True
        return content

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Content of the fingerprint by the names that users write; long parts as digests."""
        content = self._content
        told = {name: content[name] for name in _FACTS if content.get(name) is not None}
        for name in told.keys() & {*_LONG}:
            told[name] = digest(canonical_json(told[name]))[:12]
        return (
            told
            | named_settings("labels", content["policy"], False)
            | named_settings("images", self.image_settings, "images" in self.older_names)
            | named_settings("videos", self.video_settings, "videos" in self.older_names)
            | named_settings("", self.own_settings, False)
        )

    @cached_property
    def media_token_ids(self) -> dict[str, int]:
        """Kind of medium → id of the token that stands for its features."""
        if self.vision is None or self.tokenizer is None:
            return {}
        tokens = self.vision.feature_tokens.items()
        ids = {kind: self.tokenizer.token_to_id(token) for kind, token in tokens}
        return {kind: ident for kind, ident in ids.items() if ident is not None}

    @cached_property
    def feature_ids(self) -> tuple[int, ...]:
        """Ids of the tokens that stand for features of media, ascending."""
        return tuple(sorted(set(self.media_token_ids.values())))

    @cached_property
    def end_of_text(self) -> int | None:
        """Id of the token that ends a document; None if the tokenizer names none."""
        if self.eos_token is None or self.tokenizer is None:
            return None
        ident: int | None = self.tokenizer.token_to_id(self.eos_token)
        return ident

    def template_of(self, conversation: Conversation) -> ChatTemplate:
        """Return the chat template that renders a conversation."""
        template = self.template if conversation.tools is None else self.tool_template
        template = template or self.template
        assert template is not None  # checked where encoders and counters are made
        return template

    def adds_special_tokens(self, text: str) -> bool:
        """Return True if the tokenizer adds its special tokens to `text`.

        As transformers 5.23: `ProcessorMixin.apply_chat_template` lets it, except where the
        template wrote a BOS; a tokenizer alone never does.
        """
        if self.image_settings is None:
            return False
        return not (self.bos_token and text.startswith(self.bos_token))


def assemble(
    *,
    name: str,
    loaded: Loaded,
    templates: Mapping[str, str],
    processor_class: str | None,
    image_settings: Mapping[str, Any] | None,
    video_settings: Mapping[str, Any] | None,
    own_settings: Mapping[str, Any],
    policy: LabelPolicy = DEFAULT_POLICY,
    folder: str | None = None,
    trusts_code: bool = False,
    unknown: Callable[[ChatTemplate], MediaModel],
) -> ProcessorFiles:
    """Make a `ProcessorFiles` of the parts that files or an object give.

    Args:
        templates: by name; the one to use is ``default``.
        trusts_code: True if the folder has code of its own and it is run.
        unknown: makes the model that counts the media if no family does; it gets the template
            without placeholders, and may raise a PackidxError.

    Raises:
        SourceError: neither the family nor `unknown` counts media with these settings.
    """
    tokenizer, special_tokens = loaded.tokenizer, loaded.special_tokens
    vision: MediaModel | None = None
    image, video, problem, lacks_package = None, None, None, False

    def chat(vision: MediaModel | None, called: str = DEFAULT_TEMPLATE) -> ChatTemplate:
        if (template := templates.get(called)) is None:
            raise SourceError(f"processor {name} has no chat template to probe it with")
        return ChatTemplate(
            template,
            special_tokens,
            control_tokens=_control_tokens(tokenizer),
            media_tokens=None if vision is None else vision.written_tokens,
            empty_as_list=image_settings is not None,
            policy=policy,
        )

    own: dict[str, Any] = {}
    family, refusal = None, None  # the latter says why the former does not do
    if image_settings is not None:
        image = complete_settings(image_settings)
        if not trusts_code:  # which may count in any way
            family = find_family(processor_class, image_settings)
        try:
            if family is not None:
                vision, image, video, own = family.read(
                    image_settings, video_settings, own_settings
                )
        except PackidxError as error:
            family, refusal = None, error
        try:
            vision = vision or unknown(chat(None))
        except PackidxError as error:
            problem, lacks_package = str(error), isinstance(error, MissingExtraError)
        if refusal is not None and not (vision and "image" in vision.placeholders):
            raise SourceError(f"processor {name}: {refusal}") from refusal
        own |= (vision and vision.settings) or {}
    if vision is not None and tokenizer is not None:
        _check_placeholders(tokenizer, vision, name)
    for_tools = image_settings is None and {DEFAULT_TEMPLATE, _TOOL_USE} <= templates.keys()
    return ProcessorFiles(
        name=name,
        tokenizer=tokenizer,
        template=chat(vision) if DEFAULT_TEMPLATE in templates else None,
        tool_template=chat(None, _TOOL_USE) if for_tools else None,
        vision=vision,
        image_settings=image,
        video_settings=video,
        own_settings=own,
        bos_token=special_tokens.get("bos_token"),
        pad_token=special_tokens.get("pad_token"),
        eos_token=special_tokens.get("eos_token"),
        policy=policy,
        limit=loaded.limit,
        doubt=loaded.doubt,
        splits_special=loaded.splits_special,
        folder=folder,
        trusts_code=trusts_code,
        family=family.name if family else None,
        unknown=problem,
        lacks_package=lacks_package,
        older_names=family.older_names if family else (),
    )


def _source(template: ChatTemplate) -> str:
    """Text mode and Jinja both read every line end as \\n."""
    return template.source.replace("\r\n", "\n")


def _check_placeholders(tokenizer: Tokenizer, vision: MediaModel, name: str) -> None:
    """A feature token must be one token, whatever stands beside it: only then may it be repeated
    after the text is tokenized."""
    added = {str(token.content): token for token in tokenizer.get_added_tokens_decoder().values()}
    for placeholder in vision.feature_tokens.values():
        token = added.get(placeholder)
        if token is None or token.lstrip or token.rstrip or token.single_word or token.normalized:
            raise SourceError(
                f"processor {name}: its tokenizer.json has no plain added token {placeholder}, "
                "which its image processor's family needs"
            )


def _control_tokens(tokenizer: Tokenizer | None) -> tuple[str, ...]:
    if tokenizer is None:
        return ()
    added = tokenizer.get_added_tokens_decoder()
    return tuple(str(token.content) for _, token in sorted(added.items()) if token.special)


def named_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """``bos_token``, ``image_token`` … of a tokenizer's configuration, as templates see them."""
    named = {}
    further = config.get("extra_special_tokens")
    for name, value in {**config, **(further if isinstance(further, Mapping) else {})}.items():
        text = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(text, str) and name.endswith("_token"):
            named[name] = text
    return named


def named_templates(value: Any) -> dict[str, str]:
    """Templates by their names; a single one is ``default``."""
    if isinstance(value, list):
        value = {item.get("name"): item.get("template") for item in value}
    if not isinstance(value, Mapping):
        value = {DEFAULT_TEMPLATE: value}
    return {name: text for name, text in value.items() if isinstance(text, str)}
