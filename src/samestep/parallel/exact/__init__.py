"""The same bits on any number of workers: logical shards, summed in one fixed tree."""
