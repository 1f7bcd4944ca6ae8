-- semaphore/info: read how many permits are left.
-- uses     lib/number, lib/primary
-- KEYS[1]  permits_key: permits left
-- KEYS[2]  channel: no key has its name
-- returns  number: how many permits are left, 0 when there is no semaphore
local permits_key, channel = KEYS[1], KEYS[2]

prefer_primary(channel)
return read_number(permits_key) or 0
