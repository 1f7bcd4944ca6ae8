-- latch/info: read the count.
-- uses     lib/number, lib/primary
-- KEYS[1]  count_key
-- KEYS[2]  channel: no key has its name
-- returns  number: the count, 0 when there is no latch
local count_key, channel = KEYS[1], KEYS[2]

prefer_primary(channel)
return read_number(count_key) or 0
