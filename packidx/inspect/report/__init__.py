"""One page with pictures of a plan, or of lengths."""

from packidx.inspect.report.api import write_report

__all__ = ["write_report"]
