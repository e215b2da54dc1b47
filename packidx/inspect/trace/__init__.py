"""What was trained on when: the samples of a step, the steps of a sample."""

from packidx.inspect.trace.find import has_keys
from packidx.inspect.trace.results import (
    Ancestor,
    Before,
    Dropped,
    Place,
    SampleTrace,
    SampleTraces,
    StepTrace,
    TracedPack,
    TracedSample,
)
from packidx.inspect.trace.run import Run, RunOptions, run_of
from packidx.inspect.trace.samples import trace_samples
from packidx.inspect.trace.steps import trace_step

__all__ = [
    "Ancestor",
    "Before",
    "Dropped",
    "Place",
    "Run",
    "RunOptions",
    "SampleTrace",
    "SampleTraces",
    "StepTrace",
    "TracedPack",
    "TracedSample",
    "has_keys",
    "run_of",
    "trace_samples",
    "trace_step",
]
