"""Who does the work: one protocol for processes of this machine and for Ray's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Self

from packidx.errors import SourceError

Call = Callable[[Any, Any], Any]
"""``call(item, made)``: what is done with an item."""
Setup = Callable[[], Any]
"""Makes what the calls need: once in each process, if it is in use for long enough."""


class WorkerDied(Exception):
    """A process ended, whoever or whatever ended it.

    Args:
        told: what is known of its end, for the user.
        hint: what else may be the reason.

    Attributes:
        waiting: numbers of the items that were begun and not done.
    """

    def __init__(self, told: str = "", hint: str = "") -> None:
        super().__init__(told)
        self.told, self.hint = told, hint
        self.waiting: list[int] = []

    def error(self, doing: str, cure: str = "use fewer workers") -> SourceError:
        """The sentence for the user: what the process did (``'counted a.jsonl'``), what to do."""
        return SourceError(
            f"a worker process died while it {doing}: {self.told}most often memory ran out, so "
            f"{cure}{self.hint}"
        )


class Workers(ABC):
    """Processes that do calls. What they do may be done twice, even by two of them at once."""

    def run(
        self,
        call: Call,
        items: Collection[Any],
        setup: Setup,
        *,
        here: Setup | None = None,
        in_turn: bool = False,
    ) -> Iterator[tuple[int, Any]]:
        """(number, ``call(item, made)``) of every item.

        Where items fail, the error is that of the first of them, as if they were done in turn.

        Args:
            call: picklable.
            items: what is to be done; small. They are taken as they can be done.
            setup: picklable; ``made = setup()`` in a process that has not made it yet.
            here: instead of `setup` where this process does the work itself.
            in_turn: the items' order, in which few results wait for an earlier one; else any.

        Raises:
            OptionError: an object of the user's cannot be sent to another process.
            WorkerDied: a process ended.
            SourceError, MismatchError, …: what `call` and `setup` raise.
        """
        if not items:
            return
        if not self.takes(len(items)):
            made = (here or setup)()
            for number, item in enumerate(items):
                yield number, call(item, made)
            return
        self.start(setup, len(items))
        upcoming = enumerate(items)
        pending: dict[Any, int] = {}
        results: dict[int, Any] = {}
        failed: tuple[int, Exception] | None = None
        following = 0
        try:
            while True:
                while failed is None and self._has_room(len(pending), len(results)):
                    if (entry := next(upcoming, None)) is None:
                        break
                    pending[self._begin(call, entry[1])] = entry[0]
                if failed is not None and failed[0] < min(pending.values(), default=len(items)):
                    raise failed[1]
                if not pending:
                    return
                for handle in self._finished(pending):
                    try:
                        results[pending[handle]] = self._result(handle)
                    except WorkerDied:
                        raise
                    except Exception as error:
                        if failed is None or pending[handle] < failed[0]:
                            failed = pending[handle], error
                    del pending[handle]
                while results and (not in_turn or following in results):
                    following = following if in_turn else min(results)
                    yield following, results.pop(following)
                    following += 1
        except WorkerDied as died:
            died.waiting = sorted(pending.values())
            raise
        finally:
            for handle in pending:  # the caller has had enough, or an item failed
                self._cancel(handle)

    @abstractmethod
    def takes(self, num_items: int) -> bool:
        """Whether so many items are for them, rather than for the calling process."""

    @abstractmethod
    def start(self, setup: Setup, num_items: int | None = None) -> None:
        """Let them begin to make what `setup` makes, before there is anything to do.

        Args:
            setup: as of `run`.
            num_items: how many there will be; None where nobody knows yet.

        Raises:
            OptionError: `setup` holds an object that cannot be sent to another process.
        """

    @abstractmethod
    def close(self) -> None:
        """End them, whatever they do."""

    @abstractmethod
    def _has_room(self, num_pending: int, num_results: int) -> bool:
        """Whether one more item is begun: so that nobody waits for work, and no memory fills."""

    @abstractmethod
    def _begin(self, call: Call, item: Any) -> Any:
        """Begin an item, and return what stands for it."""

    @abstractmethod
    def _finished(self, pending: Collection[Any]) -> Iterable[Any]:
        """Wait until some of those that were begun are done."""

    @abstractmethod
    def _result(self, handle: Any) -> Any:
        """What came of one that is done."""

    @abstractmethod
    def _cancel(self, handle: Any) -> None:
        """Nobody wants it any more."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
