"""The chain: links that hand on batches, from the plan to the training loop.

    Open < Split < Prepare < Ahead < Decode [< Own < Decode] < Join       each `next` asks the one before it

`loading` has the head of a loader's chain, `stage` and `compose` those of shorter ones.
"""
