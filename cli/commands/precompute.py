"""`packidx precompute`: write a data set back with its counts in it, or its images resized."""

from __future__ import annotations

import dataclasses
from typing import Any

import cloup

from packidx.words import format_count

from ..options import (
    json_option,
    option_group,
    output_option,
    quiet_option,
    settings_option,
    trust_option,
    workers_option,
)
from ..show import console
from ..sources import print_sources, processor_option, record_options, sources_argument


@cloup.command()
@sources_argument()
@option_group(
    "how to count",
    "--processor Qwen/Qwen2.5-VL-7B-Instruct --processor-set images.max_pixels=602112",
    processor_option(required=True),
    settings_option(),
    trust_option,
)
@option_group(
    "what the records look like",
    "--column messages=dialog --tag role_tag=speaker --media-root photos/",
    record_options,
)
@option_group("scale", "--workers 8", workers_option("count"))
@option_group(
    "output",
    "-o counted/",
    output_option("Folder of the new data set, new or empty."),
    {
        "--images": "Write each image once, losslessly, at the size to which the processor resizes "
        "it, and records that name the new files, in place of the counts."
    },
    json_option,
    quiet_option,
)
def precompute(quiet: bool, as_json: bool, images: bool, **options: Any) -> None:
    """Write the SOURCEs back with _text_tokens and mm_inputs_meta in every record.

    For trainers that pack inside the job: the two sum to the record's exact length. JSON becomes
    JSON Lines; a record that cannot be counted is left as it is. DIR/.packidx.json says what the
    counts were made with.
    """
    from packidx.estimate.summary import rejection_warnings
    from packidx.precompute import precompute as run
    from packidx.precompute import write_images

    if images:
        with console.progress_bar(quiet) as progress:
            written = write_images(progress=progress, **options)
        console.print_summary("Resized", written, as_json)
        return
    with console.progress_bar(quiet) as progress:
        summary = run(progress=progress, **options)
    if as_json:
        warnings = [*summary.warnings, *rejection_warnings(summary.sources)]
        console.print_json(dataclasses.asdict(summary) | {"warnings": warnings})
    else:
        facts = {
            "samples": console.with_parts(summary.num_samples, summary.methods),
            "tokens": format_count(summary.num_tokens),
            "rejected": console.with_parts(summary.num_rejected, summary.rejected),
            "files": format_count(summary.num_shards),
            "data set": f"{summary.path} (written in {summary.seconds:.1f} s)",
        }
        if summary.num_rejected:
            facts["rejected"] += ": left as they were"
        console.print_facts("Precomputed", facts)
        print_sources(summary.sources, {})
    console.print_warnings(summary.warnings)
    console.print_warnings(rejection_warnings(summary.sources))
