"""The parts of a processor, put together from files or objects."""

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
    """A tokenizer, and what else of it decides a sample's tokens."""

    tokenizer: Tokenizer | None
    """Neither padding nor truncating."""
    special_tokens: dict[str, str] = field(default_factory=dict)
    """By the names that templates have for them."""
    limit: int | None = None
    """Number of tokens at which the processor truncates samples."""
    splits_special: bool = False
    """As of `ProcessorFiles`."""


DEFAULT_TEMPLATE = "default"
_TOOL_USE = "tool_use"
"""A processor never takes this one, but its default."""
_LONG = ("tokenizer", "template", _TOOL_USE)  # which are told by their digests
_FACTS = (*_LONG, "end_of_text", "limit", "trusts_code")


@dataclass
class ProcessorFiles:
    """A processor without its code. Any part may be None; picklable."""

    name: str
    tokenizer: Tokenizer | None
    """Neither padding nor truncating; shared, so not to be changed."""
    template: ChatTemplate | None
    tool_template: ChatTemplate | None
    """Which a tokenizer takes where tools are given, be they none, if it has one of that name."""
    vision: MediaModel | None
    image_settings: dict[str, Any] | None
    video_settings: dict[str, Any] | None
    own_settings: dict[str, Any] = field(default_factory=dict)
    """Of the processor itself, where they change tokens."""
    bos_token: str | None = None
    pad_token: str | None = None
    eos_token: str | None = None
    """Which ends a document."""
    policy: LabelPolicy = DEFAULT_POLICY
    limit: int | None = None
    """Tokens that the real processor cuts samples at."""
    trusts_code: bool = False
    """Whether code of the folder is run; False where it has none."""
    code: str | None = None
    """Digest of that code, if it is known."""
    splits_special: bool = False
    """True if special tokens in texts are tokenized as other text is."""
    folder: str | None = None
    """Where the files lie, None for a processor that was given as an object."""
    family: str | None = None
    """Name of its `Family`; None where there is no such file."""
    unknown: str | None = None
    """Why its media cannot be counted, where it takes some."""
    lacks_package: bool = False
    """True if they cannot be counted because torch, or another package, is not installed."""
    keywords: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Settings that were given, by part, as keywords of the part's class."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Settings that were given in place of the folder's, ``{"images.max_pixels": 602112}``."""
    older_names: tuple[str, ...] = ()
    """Of `Family`."""

    @property
    def builds_all(self) -> bool:
        """True if rules do not speak for the tokenizer: every record is built."""
        return self.splits_special or self.trusts_code

    @property
    def is_probed(self) -> bool:
        """True if it takes media and is of no family of ours."""
        return self.image_settings is not None and self.family is None

    def fingerprint(self) -> str:
        """Return what must be equal where lengths are counted and where samples are built, as
        SHA-256."""
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
        """All that the fingerprint is of, by the names that users write; long parts as digests."""
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
        """Id of the token that ends a document; None where the tokenizer names none."""
        if self.eos_token is None or self.tokenizer is None:
            return None
        ident: int | None = self.tokenizer.token_to_id(self.eos_token)
        return ident

    def template_of(self, conversation: Conversation) -> ChatTemplate:
        """The chat template that a conversation is rendered by."""
        template = self.template if conversation.tools is None else self.tool_template
        template = template or self.template
        assert template is not None  # whoever renders has one
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
    """Parts, as files or objects give them, put together; the one way to a `ProcessorFiles`.

    Args:
        templates: by name; without ``default`` it has none.
        trusts_code: whether there is code of the folder's own, and it is run.
        unknown: counts the media where no family does, or not with these settings; it gets the
            template, which knows of no placeholders, and may raise a PackidxError.

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
