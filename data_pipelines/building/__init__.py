"""Parts of `build`: options, blocks of text, shards of records, the builders."""
