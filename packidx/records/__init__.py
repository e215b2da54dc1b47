"""Raw records on disk, and what they mean: sources, locators, the conversation and its media.

`sources` finds shards and reads lines, `dialects` turns a raw record into the one `Conversation`
that everything else works on, `media` finds and opens the images a record refers to.
"""
