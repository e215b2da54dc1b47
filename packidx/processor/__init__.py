"""A processor's tokenizer, chat template and media settings, once they are loaded.

`packidx.encode.loading.load_processor` reads a folder (or fetches a model's small files), and
`ConversationCounter` turns conversations and image sizes into the token counts that the real
processor would build.
"""
