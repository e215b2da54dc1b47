"""Raw records on disk, and what they mean: sources, locators, the conversation and its media.

From a file to a conversation: `sources` find the shards that arguments and mixes name, `containers`
scan and read each kind of file, and `dialects` read a record, whose columns have standard names
(`layout`), into the one `Conversation` that everything else works on. `media` finds and opens what
it names.
"""
