"""The learner: batches, advantages, losses, packing and the ranks that train.

Importing this package imports no torch; neither do `batch`, `advantages`, `losses`, `corrections`, `kl`,
`packing` and `schedule`, so that names can be listed and checked before anything heavy is loaded.
"""
