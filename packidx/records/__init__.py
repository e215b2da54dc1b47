"""Raw records on disk, and what they mean: sources, locators, the conversation and its media.

From a file to a conversation: `expand` finds the shards that arguments and `mixes` name,
`containers` scan and read each kind of file, `layout` puts a data set's own names into the standard
ones (`sources` does both), and `dialects` turns a record into the one `Conversation` that
everything else works on. `media` finds and opens what it refers to (`images`, `video`,
`lmdb_store`).
"""
