"""The simulator under a plan of faults: who is there, what gets through, and what is under way.

With `keep`, a sender knows at once what did not get through, and keeps it (`mail`). With `outbox`
every link has parcels, which are sent again until they are acknowledged (`parcels`). Nodes come and
go between exchanges (`roster`).
"""
