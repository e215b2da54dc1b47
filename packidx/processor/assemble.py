"""The parts of a processor, put together from files or objects."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer

from packidx.digests import canonical_json, digest
from packidx.errors import PackidxError, SourceError
from packidx.processor.chat_template.chat_template import ChatTemplate
from packidx.processor.families import VisionFamily, find_family
from packidx.processor.fingerprint import complete_settings, named_settings
from packidx.processor.labels import DEFAULT_POLICY, LabelPolicy
from packidx.processor.text.vocabulary import vocabulary_of

SPECIAL_TOKENS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")


@dataclass
class ProcessorFiles:
    """A processor without its code. Any part may be None; picklable."""

    name: str
    tokenizer: Tokenizer | None
    """Neither padding nor truncating; shared, so not to be changed."""
    template: ChatTemplate | None
    vision: VisionFamily | None
    image_settings: dict[str, Any] | None
    video_settings: dict[str, Any] | None
    own_settings: dict[str, Any] = field(default_factory=dict)
    """Of the processor itself, where they change tokens."""
    bos_token: str | None = None
    pad_token: str | None = None
    eos_token: str | None = None
    """Which ends a document."""
    policy: LabelPolicy = DEFAULT_POLICY
    folder: str | None = None
    """Where the files lie, None for a processor that was given as an object."""
    family: str | None = None
    """Name of its `Family`; None where there is no such file."""
    source_digest: str | None = None
    """SHA-256 of the folder's files: a fingerprint that is quicker to make, and says less."""
    unknown: str | None = None
    """Why its media cannot be counted, where it takes some."""
    overrides: dict[str, Any] = field(default_factory=dict)
    """Settings that were given in place of the folder's, ``{"images.max_pixels": 602112}``."""
    older_names: tuple[str, ...] = ()
    """Of `Family`."""

    @property
    def is_known(self) -> bool:
        """Whether our tests hold its arithmetic to the real processor's: a family of ours, or text
        alone."""
        return self.family is not None or self.image_settings is None

    def fingerprint(self) -> str:
        """What must be equal where lengths are counted and where samples are built, as SHA-256."""
        return self._fingerprint

    @cached_property
    def _fingerprint(self) -> str:
        return digest(canonical_json(self._content))

    @property
    def _content(self) -> dict[str, Any]:
        tokenizer, template, policy = self.tokenizer, self.template, self.policy.describe()
        if template is not None and template.used_tokens:
            policy["special_tokens"] = template.used_tokens
        content = {
            "tokenizer": None if tokenizer is None else vocabulary_of(tokenizer).normalised,
            # Text mode and Jinja both read every line end as \n.
            "template": None if template is None else template.source.replace("\r\n", "\n"),
            "image": self.image_settings,
            "video": self.video_settings,
            "policy": policy,
        }
        if self.own_settings:
            content["own"] = self.own_settings
        if self.eos_token is not None:
            content["end_of_text"] = self.eos_token
        return content

    @cached_property
    def settings(self) -> dict[str, Any]:
        """All that the fingerprint is of, by the names that users write; long parts as digests."""
        content = self._content
        told = {name: content[name] for name in ("tokenizer", "template") if content[name]}
        told = {name: digest(canonical_json(part))[:12] for name, part in told.items()}
        if self.eos_token is not None:
            told["end_of_text"] = self.eos_token
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

    @property
    def around_text(self) -> tuple[str, str]:
        """What the processor puts before and after a rendered text."""
        return ("", "") if self.vision is None else self.vision.around_text

    def adds_special_tokens(self, text: str) -> bool:
        """Whether the tokenizer adds its special tokens to `text`, with what is around it.

        As transformers 5.23: `ProcessorMixin.apply_chat_template` lets it, except where the
        template wrote a BOS; a tokenizer alone never does.
        """
        if self.image_settings is None:
            return False
        return not (self.bos_token and text.startswith(self.bos_token, len(self.around_text[0])))


def assemble(
    *,
    name: str,
    tokenizer: Tokenizer | None,
    template: str | None,
    special_tokens: dict[str, str],
    processor_class: str | None,
    image_settings: Mapping[str, Any] | None,
    video_settings: Mapping[str, Any] | None,
    own_settings: Mapping[str, Any],
    policy: LabelPolicy = DEFAULT_POLICY,
    folder: str | None = None,
    unknown: Callable[[ChatTemplate], VisionFamily],
) -> ProcessorFiles:
    """Parts, as files or objects give them, put together; the one way to a `ProcessorFiles`.

    Args:
        unknown: counts the media where no family does; it gets the template, which knows of no
            placeholders, and may raise a PackidxError.
    """
    family = None if image_settings is None else find_family(processor_class, image_settings)
    vision, image, video, problem = None, None, None, None

    def chat(vision: VisionFamily | None) -> ChatTemplate:
        if template is None:
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
    if family is not None:
        own = family.complete(
            {name: own_settings.get(name) for name in family.own_defaults}, family.own_defaults
        )
        if video_settings is not None and family.video_defaults:
            video = family.complete(video_settings, family.video_defaults)
    if image_settings is not None:
        image = complete_settings(image_settings)
        try:
            if family is not None:
                image = family.complete(image_settings, family.image_defaults)
            vision = family.build(image, video or {}, own) if family else unknown(chat(None))
        except PackidxError as error:
            if family is not None:
                raise SourceError(f"processor {name}: {error}") from error
            problem = str(error)
        own |= getattr(vision, "settings", {})
    if vision is not None and tokenizer is not None:
        _check_placeholders(tokenizer, vision, name)
    return ProcessorFiles(
        name=name,
        tokenizer=tokenizer,
        template=None if template is None else chat(vision),
        vision=vision,
        image_settings=image,
        video_settings=video,
        own_settings=own,
        bos_token=special_tokens.get("bos_token"),
        pad_token=special_tokens.get("pad_token"),
        eos_token=special_tokens.get("eos_token"),
        policy=policy,
        folder=folder,
        family=family.name if family else None,
        unknown=problem,
        older_names=family.older_names if family else (),
    )


def _check_placeholders(tokenizer: Tokenizer, vision: VisionFamily, name: str) -> None:
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
    """``bos_token``, ``eos_token`` … of a tokenizer's configuration, as templates see them."""
    named = {}
    for kind in SPECIAL_TOKENS:
        value = config.get(f"{kind}_token")
        value = value.get("content") if isinstance(value, Mapping) else value
        if value is not None:
            named[f"{kind}_token"] = str(value)
    return named


def default_template(value: Any) -> str | None:
    """The template called ``default`` where there are several, by name or as a list."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return default_template(value.get("default"))
    if isinstance(value, list):
        named = {item.get("name"): item.get("template") for item in value}
        return default_template(named.get("default"))
    return None
