"""Times of communication on a profile's network.

`collectives` and `expert_exchange` in closed form, of `kernels.collective`; `links/` sees a network
link by link, `schedules/` a collective message by message: drawings, oracles, contention.
"""
